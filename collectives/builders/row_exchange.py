"""Rows go where they are wanted, and sums of rows come back: two plans.

``dispatch`` moves rows in at most two hops [1]_.  A sender gathers the rows of
each rank that it sends to.  What comes is passed on inside the node.  At the
end all rows are brought into their order.

``combine`` goes the same way back.  What ranks of a node have for a row is
combined at the row's relay, and crosses to the sender's node once.

Algorithm ``flat`` sends each row to each rank that wants it.  ``two_hops``
sends it to one relay in each other node.  Who is whose relay is data of the
problem: see `closeranks.collectives.builders.row_moves`.

References
----------
.. [1] C. Hwang et al. Tutel: adaptive mixture-of-experts at scale. MLSys 2023
   (two-dimensional hierarchical all-to-all), which sends a row for each rank
   that wants it.  Here a row crosses to a node once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.two_tiers import nodes_of
from closeranks.collectives.builders.row_moves import RowMoves
from closeranks.collectives.pairs import row_kernels  # noqa: F401 - registers kernels
from closeranks.collectives.pairs.pair_message import OPS
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.schedule import After, Schedule

Ints = NDArray[np.int64]
Writing = Generator[None, None, None]

#: Slots of messages: between senders and relays, and inside a node.
_STRAIGHT, _PASSED = range(2)
#: Up to so many messages are gathered one by one, so that the first leaves early.
_FEW: Final = 16


class RowBytes(NamedTuple):
    """Bytes of rows that differ; each is a multiple of the size of its numbers.

    Attributes
    ----------
    given, came, passed : ndarray of int64
        Bytes of each row given, of those that come from senders, of those that
        relays pass on; in these orders.
    given_types, came_types : ndarray of int64
        Number of the type of each, for `combine` only.
    """

    given: Ints
    came: Ints
    passed: Ints
    given_types: Ints
    came_types: Ints


@dataclass(frozen=True, eq=False)
class RowProblem(Problem):
    """An exchange of rows, as far as a rank knows it.

    Attributes
    ----------
    moves : mapping of int to RowMoves
        Of this rank at least.
    row_bytes : mapping of int to RowBytes, or None
        Of the same ranks, where rows differ; else each has ``itemsize`` bytes.
    op : str
        Of `combine`: one of `OPS`.
    dtype : int
        Of `combine`: number of the rows' type.
    """

    moves: Mapping[int, RowMoves] = field(default_factory=dict)
    row_bytes: Mapping[int, RowBytes] | None = None
    op: str = "SUM"
    dtype: int = -1

    def input_items(self, rank: int) -> int:
        """Return 0: the plan opens its input."""
        del rank
        return 0

    def output_items(self, rank: int) -> int:
        """Return 0: the plan opens its output."""
        del rank
        return 0


class _Area(NamedTuple):
    """Rows that lie one after the other in a buffer."""

    buffer: int
    #: Byte at which each row begins; the last is the end.
    edges: Sequence[int]
    #: Bytes of each row where they differ.
    sizes: Ints | None

    def span(self, first: int, last: int) -> Block:
        """Return rows ``first`` to below ``last`` as one block."""
        start = self.edges[first]
        return Block(self.buffer, start, self.edges[last] - start)


class _Part(NamedTuple):
    """Rows of one rank, there once ``after`` is done."""

    rows: Ints
    block: Block
    after: After


class _Rows:
    """Writes steps on rows of one rank."""

    def __init__(self, out: Schedule, problem: RowProblem) -> None:
        self.out, self.problem = out, problem
        self.moves = problem.moves[out.rank]
        self.sizes = None if problem.row_bytes is None else problem.row_bytes[out.rank]

    def area(self, buffer: int, sizes: Ints | None, n_rows: int) -> _Area:
        """Lay out rows of a buffer."""
        if sizes is None:
            size = self.problem.itemsize
            return _Area(buffer, range(0, (n_rows + 1) * size, size), None)
        return _Area(buffer, list(accumulate(sizes.tolist(), initial=0)), sizes)

    def room(self, sizes: Ints | None, n_rows: int) -> _Area:
        """Allocate memory for rows."""
        area = self.area(-1, sizes, n_rows)
        return area._replace(buffer=self.out.scratch(area.edges[-1], 1))

    def open(self, given: _Area, result: _Area) -> After:
        """Open input and output; return the step that the output waits for."""
        out, total = self.out, result.edges[-1]
        out.open_input(given.edges[-1])
        count = out.register(total)
        out.open_output(count)
        numbers = out.constant(np.array([total]))
        return (out.apply("numbers", [Block(numbers, 0, 1)], sets=[count]),)

    def picked(self, source: _Area, rows: Ints, after: After) -> _Part:
        """Return rows as one block: where they lie if they are neighbours, else packed."""
        if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows) and _ascends(rows):
            return _Part(rows, source.span(int(rows[0]), int(rows[-1]) + 1), after)
        sizes = None if source.sizes is None else source.sizes[rows]
        target = self.room(sizes, len(rows))
        block = target.span(0, len(rows))
        return _Part(rows, block, (self.pick(source, rows, block, after),))

    def picked_for(
        self, source: _Area, wanted: Mapping[int, Ints], after: After
    ) -> Iterator[tuple[int, _Part]]:
        """Give the rows of each other rank as one block, first of those above this one."""
        peers = _turned(wanted, self.out.rank)
        if len(peers) <= _FEW:
            for peer in peers:
                yield peer, self.picked(source, wanted[peer], after)
            return
        all_rows = np.concatenate([wanted[peer] for peer in peers])  # one step for all of them
        sizes = None if source.sizes is None else source.sizes[all_rows]
        room, first = self.room(sizes, len(all_rows)), 0
        done = (self.pick(source, all_rows, room.span(0, len(all_rows)), after),)
        for peer in peers:
            last = first + len(wanted[peer])
            yield peer, _Part(wanted[peer], room.span(first, last), done)
            first = last

    def pick(self, source: _Area, rows: Ints, block: Block, after: After) -> int:
        """Gather rows into a block."""
        out = self.out
        data = source.span(0, len(source.edges) - 1)
        which = Block(out.constant(rows), 0, len(rows))
        if source.sizes is None:
            return out.apply("row_pick", [which, data], [block], after=after)
        starts = np.array(source.edges, np.int64)[rows]
        numbers = [Block(out.constant(one), 0, len(rows)) for one in (starts, source.sizes[rows])]
        return out.apply("run_pick", [*numbers, data], [block], after=after)

    def combine(
        self, parts: Sequence[_Part], target: _Area, types: Ints | None, after: After
    ) -> int:
        """Combine the rows of several ranks, in this order."""
        out, n_rows = self.out, len(target.edges) - 1
        counts = [len(part.rows) for part in parts]
        op = OPS.index(self.problem.op)
        head = out.constant(np.array([op, self.problem.dtype, n_rows, *counts]))
        where = np.concatenate([np.empty(0, np.int64), *(part.rows for part in parts)])
        numbers = [Block(head, 0, 3 + len(counts)), Block(out.constant(where), 0, len(where))]
        kernel = "row_combine"
        if target.sizes is not None and types is not None:
            kernel = "run_combine"
            numbers += [Block(out.constant(one), 0, n_rows) for one in (types, target.sizes)]
        ready = after + tuple(step for part in parts for step in part.after)
        blocks = [*numbers, *(part.block for part in parts)]
        return out.apply(kernel, blocks, [target.span(0, n_rows)], after=ready)


def _ascends(rows: Ints) -> bool:
    return bool((rows[1:] > rows[:-1]).all())


def _is_in_place(moves: RowMoves) -> bool:
    """Whether rows arrive in the order of the result."""
    return bool((moves.order == np.arange(len(moves.order))).all())


def _turned(peers: Mapping[int, object], rank: int) -> list[int]:
    """List the other ranks, those above ``rank`` first, so that not all send to one."""
    others = [peer for peer in peers if peer != rank]
    return [peer for peer in others if peer > rank] + [peer for peer in others if peer < rank]


def _edges(counts: Mapping[int, int], first: int = 0) -> dict[int, tuple[int, int]]:
    """Return which rows belong to each rank: the first, and the end."""
    ends = list(accumulate(counts.values(), initial=first))
    return dict(zip(counts, pairwise(ends), strict=False))


def build_dispatch(out: Schedule, problem: Problem) -> Writing:
    """Write the plan of ``dispatch``."""
    assert isinstance(problem, RowProblem)
    if out.rank not in problem.moves:
        return  # a price is asked for, and only this rank's part is known
    me, rows = out.rank, _Rows(out, problem)
    moves, sizes, n_came = rows.moves, rows.sizes, rows.moves.n_came
    given = rows.area(INPUT, None if sizes is None else sizes.given, moves.n_rows)
    there = None if sizes is None else np.concatenate([sizes.came, sizes.passed])
    n_rows = len(moves.order)
    in_place = _is_in_place(moves)
    if in_place:
        room = result = rows.area(OUTPUT, there, n_rows)
    else:
        room = rows.room(there, n_rows)
        result = rows.area(OUTPUT, None if there is None else there[moves.order], n_rows)
    opened = rows.open(given, result)
    ready = opened if in_place else ()
    edges = _edges(moves.came)
    arrivals = tuple(
        out.receive(peer, room.span(*edges[peer]), _STRAIGHT, ready)
        for peer in moves.came
        if peer != me
    )
    handed = tuple(
        out.receive(relay, room.span(*edge), _PASSED, ready)
        for relay, edge in _edges(moves.passed, n_came).items()
    )
    yield
    for peer, part in rows.picked_for(given, moves.first, ()):
        out.send(peer, part.block, _STRAIGHT, part.after)
    if me in moves.first:
        own = rows.pick(given, moves.first[me], room.span(*edges[me]), ready)
        arrivals += (own,)
    yield
    came = room._replace(edges=room.edges[: n_came + 1])
    for peer, part in rows.picked_for(came, moves.onward, arrivals):
        out.send(peer, part.block, _PASSED, part.after)
    if in_place:
        if not result.edges[-1]:  # the output is allocated by a step that writes it
            rows.pick(room, np.empty(0, np.int64), result.span(0, 0), opened)
        return
    rows.pick(room, moves.order, result.span(0, n_rows), (*opened, *arrivals, *handed))


def build_combine(out: Schedule, problem: Problem) -> Writing:
    """Write the plan of ``combine``."""
    assert isinstance(problem, RowProblem)
    if out.rank not in problem.moves:
        return
    me, rows = out.rank, _Rows(out, problem)
    moves, sizes, n_came = rows.moves, rows.sizes, rows.moves.n_came
    there = None if sizes is None else np.concatenate([sizes.came, sizes.passed])
    given = rows.area(INPUT, None if there is None else there[moves.order], len(moves.order))
    result = rows.area(OUTPUT, None if sizes is None else sizes.given, moves.n_rows)
    opened = rows.open(given, result)
    #: Given row of each row that came or was passed on.
    back = np.empty(len(moves.order), np.int64)
    back[moves.order] = np.arange(len(moves.order))
    returned = _received(rows, moves.onward, None if sizes is None else sizes.came, _PASSED)
    summed = _received(rows, moves.first, None if sizes is None else sizes.given, _STRAIGHT)
    yield
    held = {relay: back[slice(*edge)] for relay, edge in _edges(moves.passed, n_came).items()}
    for relay, part in rows.picked_for(given, held, ()):
        out.send(relay, part.block, _PASSED, part.after)
    yield
    edges = _edges(moves.came)
    if returned:
        own = rows.picked(given, back[:n_came], ())
        parts = {me: own._replace(rows=np.arange(n_came)), **returned}
        sums = rows.room(None if sizes is None else sizes.came, n_came)
        types = None if sizes is None else sizes.came_types
        done: After = (rows.combine([parts[peer] for peer in sorted(parts)], sums, types, ()),)
        for peer in _turned(moves.came, me):
            out.send(peer, sums.span(*edges[peer]), _STRAIGHT, done)
    else:
        held = {peer: back[slice(*edge)] for peer, edge in edges.items()}
        for peer, part in rows.picked_for(given, held, ()):
            out.send(peer, part.block, _STRAIGHT, part.after)
    yield
    if me in moves.first:
        if returned:
            summed[me] = _Part(moves.first[me], sums.span(*edges[me]), done)
        else:
            own = rows.picked(given, back[slice(*edges[me])], ())
            summed[me] = own._replace(rows=moves.first[me])
    peers = sorted(summed)
    if problem.commutative:  # relays stand for their nodes
        node = nodes_of(problem.topology).node.tolist()
        peers.sort(key=node.__getitem__)
    operands = [summed[peer] for peer in peers]
    rows.combine(operands, result, None if sizes is None else sizes.given_types, opened)


def _received(
    rows: _Rows, wanted: Mapping[int, Ints], sizes: Ints | None, slot: int
) -> dict[int, _Part]:
    """Receive the rows of each other rank, one rank after the other."""
    others = {peer: which for peer, which in wanted.items() if peer != rows.out.rank}
    if not others:
        return {}
    all_rows = np.concatenate(list(others.values()))
    room = rows.room(None if sizes is None else sizes[all_rows], len(all_rows))
    edges = _edges({peer: len(which) for peer, which in others.items()})
    found = {}
    for peer, which in others.items():
        block = room.span(*edges[peer])
        found[peer] = _Part(which, block, (rows.out.receive(peer, block, slot),))
    return found


DISPATCH = (
    Algorithm("flat", build_dispatch, symbolic=True, follows=False),
    Algorithm("two_hops", build_dispatch, symbolic=True, follows=False),
)
COMBINE = (
    Algorithm("flat", build_combine, symbolic=True, follows=False),
    Algorithm("two_hops", build_combine, symbolic=True, follows=False),
)
