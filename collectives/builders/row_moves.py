"""Which rows each rank sends, passes on and keeps.

A row goes to a node once: to its relay there, which wants it itself and
passes it on to the others of its node.  Ranks of the sender's own node get
their rows at once.  A sender tells each rank which rows it will get, and from
whom; all else follows from what a rank has heard.

Everything here is local and pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.two_tiers import NodeTiers
from closeranks.collectives.pairs.pair_message import loop

Ints = NDArray[np.int64]

#: Low bits of a record: the relay's place in its node.  A row's number stands above them.
_PLACE_BITS: Final = 20
#: Low bits of an origin: the row's number there.  The rank stands above them.
_ROW_BITS: Final = 42
#: Ranks of a node that one word of a mask has bits for.
_WORD: Final = 63


class RowMoves(NamedTuple):
    """What one rank does with rows.

    Attributes
    ----------
    n_rows : int
        Rows that it gives.
    first : dict of int to ndarray of int64
        Which of them go straight to a rank; itself among them.
    came : dict of int to int
        How many rows come straight from a rank, in the order of ranks.
    onward : dict of int to ndarray of int64
        Which of all those that came are passed on to a rank of this node.
    passed : dict of int to int
        How many rows a relay passes on to here, in the order of ranks.
    order : ndarray of int64, shape (arrived,)
        Where each arrived row stands: among those that came, then those passed on.
    sources, tokens : ndarray of int64, shape (arrived,)
        Rank and number of each arrived row where it began.
    """

    n_rows: int
    first: dict[int, Ints]
    came: dict[int, int]
    onward: dict[int, Ints]
    passed: dict[int, int]
    order: Ints
    sources: Ints
    tokens: Ints

    @property
    def n_came(self) -> int:
        """Rows that come straight from their senders."""
        return sum(self.came.values())


class Announcement(NamedTuple):
    """What a sender tells, and which rows it sends to whom.

    Attributes
    ----------
    direct, relayed : dict of int to ndarray of int64
        Rank -> rows it gets: if all that want rows are sent to, if relays are.
    told : dict of int to ndarray of int64
        Rank -> what it is told, for `heard_moves`.
    """

    direct: dict[int, Ints]
    relayed: dict[int, Ints]
    told: dict[int, Ints]


def origin_of(ranks: Ints | int, rows: Ints) -> Ints:
    """Write rank and number of rows as one number each."""
    return np.asarray(ranks, np.int64) << _ROW_BITS | rows


def announced(
    rows: Ints, ranks: Ints, tiers: NodeTiers, rank: int, origins: Ints | None = None
) -> Announcement:
    """Choose relays, and say what each rank is told.

    The relay of a row in a node is that of the wanting ranks which has the
    fewest rows so far.

    Parameters
    ----------
    rows, ranks : ndarray of int64, shape (pairs,)
        Rows and the ranks that want them: each pair once, sorted by row and rank.
    tiers : NodeTiers
        Nodes.
    rank : int
        The sender.
    origins : ndarray of int64, shape (rows given,), optional
        Where each row began, see `origin_of`, if not here.

    Returns
    -------
    Announcement
        For all ranks that want a row.
    """
    nodes = tiers.node[ranks]
    order = np.argsort(rows * len(tiers) + nodes, kind="stable")  # mostly they are sorted
    rows, ranks, nodes = rows[order], ranks[order], nodes[order]
    far = nodes != tiers.node[rank]
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = (rows[1:] != rows[:-1]) | (nodes[1:] != nodes[:-1])
    is_new |= ~far  # a rank of the own node is sent to at once
    group = np.cumsum(is_new) - 1
    starts = np.append(np.flatnonzero(is_new), len(rows))
    n_groups = len(starts) - 1
    chosen = np.empty(n_groups, np.int64)
    loop("relays", starts, n_groups, ranks, np.zeros(len(tiers.node), np.int64), rank, chosen)
    relays = ranks[chosen]
    words = masks(group, tiers.local[ranks], n_groups, _words(tiers))
    records = rows << _PLACE_BITS | tiers.local[relays][group]
    told, direct = {}, {}
    for peer, which in _by_key(ranks):
        direct[peer] = rows[which]
        parts = [np.array([len(which)]), records[which]]
        if origins is not None:
            parts.append(origins[rows[which]])
        if _is_relayed(tiers, rank, peer):
            parts.append(words[group[which][relays[group[which]] == peer]].reshape(-1))
        told[peer] = np.concatenate(parts)
    relayed = {peer: rows[chosen[which]] for peer, which in _by_key(relays)}
    return Announcement(direct, relayed, told)


def masks(group: Ints, places: Ints, n_groups: int, words: int) -> Ints:
    """Set a bit for each place of a group; shape (n_groups, words)."""
    found = np.zeros((n_groups, words), np.int64)
    np.bitwise_or.at(found, (group, places // _WORD), np.int64(1) << places % _WORD)
    return found


def _words(tiers: NodeTiers) -> int:
    return max(len(members) for members in tiers.members) // _WORD + 1


def _is_relayed(tiers: NodeTiers, source: int, rank: int) -> bool:
    """Whether a rank passes on rows of a source."""
    node = tiers.node[rank]
    return bool(node != tiers.node[source]) and len(tiers.members[node]) > 1


def _by_key(keys: Ints) -> list[tuple[int, Ints]]:
    """Give each key with the places where it stands, keys ascending."""
    order = np.argsort(keys, kind="stable")
    found, firsts = np.unique(keys[order], return_index=True)
    return list(zip(found.tolist(), np.split(order, firsts[1:]), strict=True)) if len(keys) else []


class _Heard(NamedTuple):
    """Rows that come to this rank, in the order of senders and rows.

    Attributes
    ----------
    sources, relays, origins : ndarray of int64, shape (arrived,)
        Sender, relay and place of origin of each.
    words : ndarray of int64, shape (rows relayed by this rank, words)
        Which ranks of the node want these.
    """

    sources: Ints
    relays: Ints
    origins: Ints
    words: Ints


def _read(told: Ints, counts: Ints, tiers: NodeTiers, rank: int, *, begun: bool) -> _Heard:
    """Read what `announced` has written; ``begun`` says that rows began elsewhere."""
    sources = np.flatnonzero(counts)
    starts = (np.cumsum(counts) - counts)[sources]
    n = told[starts]
    at = _spread(starts + 1, n)
    members = np.array(tiers.members[tiers.node[rank]])
    senders, records = np.repeat(sources, n), told[at]
    relays = members[records & (1 << _PLACE_BITS) - 1]
    origins = origin_of(senders, records >> _PLACE_BITS)
    if begun:
        origins = told[at + np.repeat(n, n)]
    n_words = _words(tiers)
    mine = senders[relays == rank]
    words = np.zeros((len(mine), n_words), np.int64)
    far = tiers.node[mine] != tiers.node[rank]
    if len(members) > 1 and far.any():
        per_source = np.bincount(np.searchsorted(sources, mine[far]), minlength=len(sources))
        first = starts + 1 + n * (2 if begun else 1)
        words[far] = told[_spread(first, per_source * n_words)].reshape(-1, n_words)
    return _Heard(senders, relays, origins, words)


def _spread(starts: Ints, counts: Ints) -> Ints:
    """List ``counts[i]`` numbers from ``starts[i]`` on, for each i."""
    firsts = np.cumsum(counts) - counts
    return np.repeat(starts - firsts, counts) + np.arange(int(counts.sum()))


def heard_moves(
    n_rows: int,
    announcement: Announcement,
    told: Ints,
    counts: Ints,
    tiers: NodeTiers,
    rank: int,
    *,
    begun: bool = False,
    relayed: bool = True,
) -> RowMoves:
    """Work out what a rank does with rows.

    Parameters
    ----------
    n_rows : int
        Rows that it gives.
    announcement : Announcement
        What it has told.
    told : ndarray of int64
        What all ranks have told it, one after the other.
    counts : ndarray of int64, shape (size,)
        How many numbers each rank has told it.
    tiers : NodeTiers
        Nodes.
    rank : int
        The rank.
    begun : bool
        Whether senders have told where rows began.
    relayed : bool
        Whether rows go by relays, or straight to each rank.

    Returns
    -------
    RowMoves
        Its part.
    """
    heard = _read(told, counts, tiers, rank, begun=begun)
    relays = heard.relays if relayed else np.full_like(heard.relays, rank)
    came = np.bincount(heard.sources[relays == rank], minlength=len(counts))
    places, passed = _placed(relays, rank)
    by_origin = np.argsort(heard.origins, kind="stable")
    origins = heard.origins[by_origin]
    return RowMoves(
        n_rows,
        announcement.relayed if relayed else announcement.direct,
        {int(source): int(came[source]) for source in np.flatnonzero(came)},
        _onward(heard.words, tiers, rank) if relayed else {},
        passed,
        places[by_origin],
        origins >> _ROW_BITS,
        origins & (1 << _ROW_BITS) - 1,
    )


def _placed(relays: Ints, rank: int) -> tuple[Ints, dict[int, int]]:
    """Lay rows that come straight before those of each relay; count the latter."""
    groups = sorted(_by_key(relays), key=lambda one: one[0] != rank)
    places = np.empty(len(relays), np.int64)
    if groups:
        places[np.concatenate([which for _, which in groups])] = np.arange(len(relays))
    return places, {relay: len(which) for relay, which in groups if relay != rank}


def _onward(words: Ints, tiers: NodeTiers, rank: int) -> dict[int, Ints]:
    """List the rows that are passed on to each other rank of the node."""
    found = {}
    for place, peer in enumerate(tiers.members[tiers.node[rank]]):
        which = np.flatnonzero(words[:, place // _WORD] >> place % _WORD & 1)
        if peer != rank and len(which):
            found[peer] = which
    return found
