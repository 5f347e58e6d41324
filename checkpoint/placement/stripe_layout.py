"""Where the bytes of a group lie: in shares, which are coded in rows.

Each rank has an *extent*: a description, then its data, both rounded up to
whole chunks.  The extents of a node's ranks follow one another and are cut
into equal pieces, one for each member and lane of the group that the node is:
a *share*.  However unequal the ranks are, the ranks that code have equal work.
Three ranks on a node with two lanes::

    rank 0          rank 1                      rank 2
    +----+--------+----+----------------------+----+------+
    |head| data   |head| data                 |head| data |   extents
    +----+--------+----+----------------------+----+------+
    |<-------- lane 0 --------->|<-------- lane 1 ------->|   shares

A lane is coded for itself, in rows that are rotated as in RAID 5 and redset.
With p members and k parities, parity j of row r lies on member (r + j) mod p,
and data block i of row r on member (r + k + i) mod p, as its i-th block.  So
each member holds p - k blocks of data, one after the other, and k parities.
Four members, one parity; ``P`` is a parity, ``Di`` data block i of the row::

             member 0   member 1   member 2   member 3
    row 0       P          D0         D1         D2
    row 1       D2         P          D0         D1
    row 2       D1         D2         P          D0
    row 3       D0         D1         D2         P

If member 2 is lost, every row lacks one block, and the other three make it
anew.

Everything here is pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from closeranks.errors import CheckpointError

#: Blocks of a code begin at multiples.
ALIGNED = 64


class Share(NamedTuple):
    """The part of one lane that one member of a group keeps."""

    group: int
    lane: int
    member: int


class Piece(NamedTuple):
    """A run of a rank's extent that lies in one share.

    Attributes
    ----------
    share : Share
        Where it lies.
    at : int
        Where it starts there.
    start : int
        Where it starts in the extent.
    nbytes : int
        Its length.
    """

    share: Share
    at: int
    start: int
    nbytes: int


class Size(NamedTuple):
    """Bytes of a rank's extent before they are rounded: its description, its data."""

    head: int
    body: int


@dataclass(frozen=True)
class StripeLayout:
    """The shares of one group.

    Parameters
    ----------
    group : int
        Its number.
    parity : int
        Members that it can lose.
    lanes : int
        Lanes that its data are cut into.
    ring : tuple of int
        The node of each member.
    ranks : mapping of int to tuple of int
        Node -> its ranks, ascending.
    sizes : mapping of int to Size
        Rank -> bytes.
    chunk : int
        Bytes that have a check sum of their own, a multiple of 64.
    """

    group: int
    parity: int
    lanes: int
    ring: tuple[int, ...]
    ranks: Mapping[int, tuple[int, ...]]
    sizes: Mapping[int, Size]
    chunk: int

    @property
    def members(self) -> int:
        """How many the group has."""
        return len(self.ring)

    @property
    def data(self) -> int:
        """Blocks of data in a row."""
        return self.members - self.parity

    @cached_property
    def everybody(self) -> tuple[int, ...]:
        """The ranks of the group, ascending."""
        return tuple(sorted(rank for ranks in self.ranks.values() for rank in ranks))

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """All of them."""
        lanes, members = range(self.lanes), range(self.members)
        return tuple(Share(self.group, lane, member) for lane in lanes for member in members)

    @cached_property
    def block(self) -> int:
        """Bytes of a block: the largest member's, cut in rows."""
        largest = max(map(self._piece_bytes, self.ranks))
        return _up(-(-largest // self.data), ALIGNED)

    @property
    def data_bytes(self) -> int:
        """Bytes of data that a share has room for."""
        return self.data * self.block

    @property
    def parity_bytes(self) -> int:
        """Bytes of parity in a share."""
        return self.parity * self.block

    def head(self, rank: int) -> int:
        """Give how many bytes a rank's description takes: whole chunks."""
        return _up(self.sizes[rank].head, self.chunk)

    def extent(self, rank: int) -> int:
        """Give how many bytes a rank's extent takes: whole chunks."""
        return self.head(rank) + _up(self.sizes[rank].body, self.chunk)

    def filled(self, share: Share) -> int:
        """Give how many bytes of data a share has: whole chunks."""
        node = self.ring[share.member]
        each = self._piece_bytes(node)
        return min(max(self._totals[node] - self._number(share) * each, 0), each)

    def keeper(self, share: Share) -> int:
        """Give the rank that looks after a share."""
        node = self.ring[share.member]
        ranks = self.ranks[node]
        return ranks[self._number(share) % len(ranks)]

    def pieces(self, rank: int) -> Iterator[Piece]:
        """Give where the extent of a rank lies, in its order."""
        node = next(node for node, ranks in self.ranks.items() if rank in ranks)
        mine, start = self._start(node, rank), 0
        length, each = self.extent(rank), self._piece_bytes(node)
        places = [member for member, where in enumerate(self.ring) if where == node]
        while start < length:
            number, at = divmod(mine + start, each)
            nbytes = min(length - start, each - at)
            member, lane = places[number // self.lanes], number % self.lanes
            yield Piece(Share(self.group, lane, member), at, start, nbytes)
            start += nbytes

    def to_json(self) -> dict[str, Any]:
        """Write it as plain JSON."""
        nodes = sorted(self.ranks)
        return {
            "group": self.group,
            "parity": self.parity,
            "lanes": self.lanes,
            "ring": list(self.ring),
            "chunk": self.chunk,
            "ranks": [[node, list(self.ranks[node])] for node in nodes],
            "sizes": [[rank, *self.sizes[rank]] for rank in self.everybody],
        }

    @cached_property
    def text(self) -> str:
        """That as text, which all headers of a save have in them."""
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def from_json(cls, found: Any) -> StripeLayout:
        """Read it.

        Parameters
        ----------
        found : object
            As `to_json` has given it.

        Returns
        -------
        StripeLayout
            Checked: no place in it is outside of a share.

        Raises
        ------
        CheckpointError
            If it is none.
        """
        try:
            ranks = {_whole(node): tuple(map(_whole, own)) for node, own in found["ranks"]}
            sizes = {
                _whole(r): Size(_whole(head), _whole(body)) for r, head, body in found["sizes"]
            }
            group, parity, lanes, chunk = (
                _whole(found[name]) for name in ("group", "parity", "lanes", "chunk")
            )
            ring = tuple(map(_whole, found["ring"]))
            made = cls(group, parity, lanes, ring, ranks, sizes, chunk)
            made._check()
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError("restore", f"no layout of a group ({error})") from error
        return made

    def _check(self) -> None:
        """Raise ValueError unless it makes sense."""
        ranks = [rank for ranks in self.ranks.values() for rank in ranks]
        most = max(map(len, self.ranks.values()), default=0)
        if not (1 <= self.parity < self.members <= 255 and 1 <= self.lanes <= most):
            raise ValueError(f"{self.parity} of {self.members} members, {self.lanes} lanes")
        if set(self.ring) != set(self.ranks) or sorted(ranks) != sorted(self.sizes):
            raise ValueError("nodes or ranks that are not there")
        if len(set(ranks)) < len(ranks) or not all(self.ranks.values()):
            raise ValueError("a rank twice, or a node without ranks")
        if self.chunk < ALIGNED or self.chunk % ALIGNED or not any(map(self.extent, ranks)):
            raise ValueError(f"chunks of {self.chunk} bytes")

    def _start(self, node: int, rank: int) -> int:
        """Give where the extent of a rank starts among those of its node."""
        return sum(self.extent(other) for other in self.ranks[node] if other < rank)

    def _piece_bytes(self, node: int) -> int:
        """Give how many bytes of data each share of a node has, but for the last ones."""
        shares = self.ring.count(node) * self.lanes
        return _up(-(-self._totals[node] // shares), self.chunk)

    @cached_property
    def _totals(self) -> dict[int, int]:
        """Give how many bytes the extents of each node take."""
        return {node: sum(map(self.extent, ranks)) for node, ranks in self.ranks.items()}

    def _number(self, share: Share) -> int:
        """Count the shares of a node up to one of them."""
        before = self.ring[: share.member].count(self.ring[share.member])
        return before * self.lanes + share.lane


def data_member(layout: StripeLayout, row: int, block: int) -> int:
    """Give the member that holds a data block of a row.  Local."""
    return (row + layout.parity + block) % layout.members


def parity_member(layout: StripeLayout, row: int, parity: int) -> int:
    """Give the member that holds a parity of a row.  Local."""
    return (row + parity) % layout.members


def slice_of(nbytes: int, ranks: int, at: int) -> tuple[int, int]:
    """Give the slice of one rank of bytes that all ranks of a group have alike.

    Local.

    Parameters
    ----------
    nbytes : int
        Of all of it.
    ranks : int
        Of the group.
    at : int
        Which of them.

    Returns
    -------
    start, stop : int
        Equal parts, but for the last ones, each from a multiple of 64.
    """
    each = _up(-(-nbytes // ranks), ALIGNED)
    return min(at * each, nbytes), min((at + 1) * each, nbytes)


def chunk_for(sizes: Mapping[int, Size], most: int) -> int:
    """Choose the bytes of a chunk: few enough that rounding costs little.

    Local.

    Parameters
    ----------
    sizes : mapping of int to Size
        Of all ranks.
    most : int
        At most so many.

    Returns
    -------
    int
        A power of two from 4096 on, or ``most``.
    """
    largest = max(size.head + size.body for size in sizes.values())
    return min(max(4096, 1 << (largest // 64).bit_length()), most)


def _whole(number: Any) -> int:
    """Take a number that is one, and none that fits no file."""
    if type(number) is not int or not 0 <= number < 1 << 62:
        raise ValueError(f"{str(number)[:40]!r} is no size")
    return number


def _up(nbytes: int, to: int) -> int:
    """Round up to a multiple."""
    return -(-nbytes // to) * to
