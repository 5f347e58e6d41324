"""In which rounds the messages of a conversion are exchanged.

All ranks do the same rounds, since each is a collective.  So they first agree
on the largest numbers of any rank: `Largest` is what each brings in.  In most
conversions a round carries a piece of every message of its stage.  If memory
is so short that not even an element of each fits, it carries a piece of one
message at most to and from each rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from closeranks.partitioning.layout.box import cells
from closeranks.partitioning.redistribution.box_pieces import cut
from closeranks.partitioning.redistribution.conversion_plan import LEAST_PIECE, ROUND_BYTES
from closeranks.partitioning.redistribution.part_moves import Move, RankPart

#: Bytes that one rank gives or takes in a round at most.
_MOST_BYTES: Final = 1 << 30
#: Bytes between nodes for which a call of its own pays.
_LEAST_FAR: Final = 1 << 15
#: Calls of a round at most.
_MOST_CALLS: Final = 16


class Largest(NamedTuple):
    """Numbers of one stage, of which the largest of all ranks count.

    Attributes
    ----------
    sends, receives : int
        Messages of the rank.
    boxes : int
        Different boxes that it sends.
    repeats : int
        Messages, of one term, from it to one receiver.
    far : int
        Elements that it sends to other nodes.
    """

    sends: int
    receives: int
    boxes: int
    repeats: int
    far: int


class StageRounds(NamedTuple):
    """The rounds of one stage.

    Attributes
    ----------
    stage : int
        Its number; up to 0 it carries terms.
    elements : int
        Elements in a piece at most.
    pieces : int
        Pieces of the largest message.
    repeats : int
        As in `Largest`, if a round carries one message a rank; else 0.
    calls : int
        In so many calls a round is exchanged: see `calls_of`.
    """

    stage: int
    elements: int
    pieces: int
    repeats: int
    calls: int = 1


class ExchangeRound(NamedTuple):
    """One round.

    Attributes
    ----------
    piece : int
        Which piece of each message.
    offset : int
        Only messages to so many ranks further on, cyclically; 0: all.
    repeat : int
        Only such a one of those from one rank to another.
    term : int
        Only this term; -1: all.
    """

    piece: int
    offset: int = 0
    repeat: int = 0
    term: int = -1


def largest(part: RankPart, stage: int, nodes: Sequence[int]) -> Largest:
    """Count what a rank does in a stage.

    Parameters
    ----------
    part : RankPart
        What it does.
    stage : int
        The stage.
    nodes : sequence of int
        Node of each rank.

    Returns
    -------
    Largest
        Its own numbers.
    """
    sends = [move for move in part.sends if move.stage == stage]
    receives = sum(move.stage == stage for move in part.receives)
    boxes = {(move.box, move.has_arrived) for move in sends}
    repeats = Counter((move.receiver, move.term) for move in sends)
    far = sum(cells(move.box) for move in sends if nodes[move.sender] != nodes[move.receiver])
    return Largest(len(sends), receives, len(boxes), max(repeats.values(), default=0), far)


def calls_of(far_bytes: int, nodes: Sequence[int]) -> int:
    """Say in how many calls a round is exchanged.

    If all messages between nodes are under way at once, some nodes receive from
    several others while some receive from none.  So long ones go in turns, as
    in a pairwise exchange: each node to the one that is so many further on.

    Parameters
    ----------
    far_bytes : int
        That a rank sends to other nodes at most.
    nodes : sequence of int
        Node of each rank, numbered from 0.

    Returns
    -------
    int
        At least 1.
    """
    return max(1, min(max(nodes), far_bytes // _LEAST_FAR, _MOST_CALLS))


def call_of(sender: int, receiver: int, count: int, calls: int) -> int:
    """Say in which call of a round messages of one node to another are exchanged.

    Parameters
    ----------
    sender, receiver : int
        The nodes.
    count : int
        Number of nodes.
    calls : int
        Number of calls, less than that of nodes; or 1.

    Returns
    -------
    int
        0..calls-1; 0 inside a node.
    """
    further = (receiver - sender) % count
    return (further - 1) * calls // (count - 1) if further else 0


def largest_of_terms(most: dict[int, Largest]) -> Largest:
    """Give the largest numbers of stages that carry terms: their pieces are alike.

    Parameters
    ----------
    most : dict of int to Largest
        Stage -> its largest numbers.

    Returns
    -------
    Largest
        Over these stages.
    """
    return Largest(*map(max, zip(*(one for stage, one in most.items() if stage <= 0), strict=True)))


def elements_of(
    most: Largest, itemsize: int, limit_bytes: int | None, *, sums: int = 0
) -> tuple[int, bool]:
    """Choose the size of a piece.

    Parameters
    ----------
    most : Largest
        Largest numbers of all ranks.
    itemsize : int
        Bytes of an element.
    limit_bytes : int, optional
        Bytes of all packed parts of a rank at most, at least two elements.
    sums : int
        Pieces that a rank keeps aside at most.

    Returns
    -------
    elements : int
        In a piece at most.
    one_by_one : bool
        Whether a round carries one message a rank.
    """
    count = max(most.sends, most.receives, sums, 1)
    if limit_bytes is None:
        nbytes = min(max(ROUND_BYTES // count, LEAST_PIECE), _MOST_BYTES // count)
        return max(1, nbytes // itemsize), False
    share = min(limit_bytes // (3 if sums else 2), _MOST_BYTES)
    if share // count >= itemsize:
        return share // count // itemsize, False
    return share // itemsize, True


def pieces_of(moves: Sequence[Move], stage: int, elements: int) -> int:
    """Count the pieces of the largest message of a stage.

    Parameters
    ----------
    moves : sequence of Move
        Of a rank.
    stage : int
        The stage.
    elements : int
        In a piece at most.

    Returns
    -------
    int
        At least 0.
    """
    return max((cut(move.box, elements).pieces for move in moves if move.stage == stage), default=0)


def in_order(
    stages: Sequence[StageRounds], terms: int, size: int
) -> Iterator[tuple[StageRounds, ExchangeRound]]:
    """List the rounds of all stages.

    A piece of the terms goes through all their stages before the next piece, so
    that sums of a piece are kept aside only.

    Parameters
    ----------
    stages : sequence of StageRounds
        By number.
    terms : int
        Terms of a reduction.
    size : int
        Number of ranks.

    Yields
    ------
    how : StageRounds
        The stage.
    which : ExchangeRound
        The round.
    """
    first = [how for how in stages if how.stage <= 0]
    if len(first) > 1:
        for piece in range(max(how.pieces for how in first)):
            for how in first:
                if piece < how.pieces:
                    yield how, ExchangeRound(piece)
        stages = stages[len(first) :]
    for how in stages:
        for which in rounds(how, terms, size):
            yield how, which


def rounds(how: StageRounds, terms: int, size: int) -> Iterator[ExchangeRound]:
    """List the rounds of a stage.

    Parameters
    ----------
    how : StageRounds
        Its numbers.
    terms : int
        Terms of a reduction.
    size : int
        Number of ranks.

    Yields
    ------
    ExchangeRound
        In the order of all ranks.
    """
    if not how.repeats:
        yield from (ExchangeRound(piece) for piece in range(how.pieces))
        return
    for term in range(terms) if how.stage == 0 else (-1,):
        for offset in range(1, size):
            for repeat in range(how.repeats):
                for number in range(how.pieces):
                    yield ExchangeRound(number, offset, repeat, term)


def chosen(moves: Sequence[Move], which: ExchangeRound, size: int) -> list[Move]:
    """Give the messages of a rank in a round.

    Parameters
    ----------
    moves : sequence of Move
        Its sends or receives in the stage, sorted.
    which : ExchangeRound
        The round.
    size : int
        Number of ranks.

    Returns
    -------
    list of Move
        In their order.
    """
    if not which.offset:
        return list(moves)
    found = [
        move
        for move in moves
        if (move.receiver - move.sender) % size == which.offset and which.term in (-1, move.term)
    ]
    return found[which.repeat : which.repeat + 1]
