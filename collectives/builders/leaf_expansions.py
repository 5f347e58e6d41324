"""Leaves written out: the moves that a leaf of a plan stands for.

`simulate` and `cost` look inside a leaf.  `execute` hands a leaf to the MPI
library or to a shared-memory kernel where it can, and writes it out where it
cannot.

A writer is called as ``writer(out, members, me, root, source, block, after,
slot)``.  It returns the steps after which the leaf is done on this rank and
none of its blocks is in use.  ``source`` and ``block`` are this rank's input
and output as the operation of that name has them, contiguous; blocks of
members are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from closeranks.collectives.builders.patterns.bruck import (
    bruck_allgather,
    bruck_alltoall,
    dissemination,
)
from closeranks.collectives.builders.patterns.direct_exchange import (
    direct_allgather,
    direct_reduce_scatter,
    one_shot_allreduce,
    pairwise_alltoall,
    two_shot_allreduce,
)
from closeranks.collectives.builders.patterns.recursive_doubling import (
    doubling_allgather,
    doubling_allreduce,
    halving_reduce_scatter,
    rabenseifner_allreduce,
)
from closeranks.collectives.builders.patterns.ring import (
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
)
from closeranks.collectives.builders.patterns.trees import (
    binomial_bcast,
    binomial_reduce,
    linear_gather,
    linear_scatter,
)
from closeranks.collectives.plans.block import Block, cut
from closeranks.collectives.plans.plan_type import Members, Writing, bring
from closeranks.collectives.plans.schedule import After, Kind, Leaf, Schedule, Step


def expand(
    script: Schedule, steps: Sequence[Step], *, keep: Callable[[Step], bool] = lambda _: False
) -> tuple[Schedule, list[Step]]:
    """Return script and steps with every NATIVE and SHARED step written out.

    Parameters
    ----------
    script : Schedule
        The rank's script; not changed.
    steps : sequence of Step
        Its steps.
    keep : callable
        Whether a leaf stays as it is.

    Returns
    -------
    script : Schedule
        As given where there is no leaf, else one with the leaves' scratch.
    steps : list of Step
        Renumbered; steps that waited for a leaf wait for its last moves.
    """
    if not any(step.kind in (Kind.NATIVE, Kind.SHARED) for step in steps):
        return script, list(steps)
    out = Schedule(script.rank, 0, 0)
    out.buffers, out.registers = list(script.buffers), list(script.registers)
    out.constants = dict(script.constants)
    written: list[Step] = []
    now: list[After] = []
    for step in steps:
        after = tuple(new for old in step.after for new in now[old])
        if isinstance(step.action, Leaf) and not keep(step):
            now.append(_write_leaf(out, step, step.action, after))
            written.extend(out.drain())
        else:
            spare = len(step.after) - step.need
            written.append(step._replace(after=after, need=len(after) - spare))
            now.append((out.written,))
            out.written += 1
    return out, written


def _write_leaf(out: Schedule, step: Step, leaf: Leaf, after: After) -> After:
    assert isinstance(step.source, Block)
    assert step.block is not None
    me = leaf.members.index(out.rank)
    writer = EXPANSIONS[leaf.expansion](
        out, leaf.members, me, leaf.root, step.source, step.block, after, step.slot
    )
    while True:
        try:
            next(writer)
        except StopIteration as end:
            done: After = end.value
            return done


Writer = Callable[
    [Schedule, Members, int, int, Block, Block, After, int], Generator[None, None, After]
]
#: A stage as leaves see it: everything but the root's turn is said.
_Stage = Callable[[Schedule, Members, int, int, Block, Block, After, int], Writing]


def _leaf(stage: _Stage) -> Writer:
    """Turn a stage into a writer: later steps wait for all of it."""

    def write(
        out: Schedule,
        members: Members,
        me: int,
        root: int,
        source: Block,
        block: Block,
        after: After,
        slot: int,
    ) -> Generator[None, None, After]:
        written = yield from stage(out, members, me, root, source, block, after, slot)
        return written.over

    return write


def _rootless(
    stage: Callable[[Schedule, Members, int, Block, Block, After, int], Writing],
) -> Writer:
    return _leaf(
        lambda out, members, me, _, source, block, after, slot: stage(
            out, members, me, source, block, after, slot
        )
    )


def _from_root(members: Members, me: int, root: int) -> tuple[list[int], int]:
    """Turn the members so that the root comes first."""
    return [*members[root:], *members[:root]], (me - root) % len(members)


def _bcast(
    out: Schedule, members: Members, me: int, root: int, source: Block, block: Block,
    after: After, slot: int,
) -> Writing:  # fmt: skip
    turned, place = _from_root(members, me, root)
    return binomial_bcast(out, turned, place, source, block, after, slot)


def _reduce(
    out: Schedule, members: Members, me: int, root: int, source: Block, block: Block,
    after: After, slot: int,
) -> Writing:  # fmt: skip
    turned, place = _from_root(members, me, root)
    target = None if place else block
    return binomial_reduce(out, turned, place, source, target, after, slot)


def _gather(
    out: Schedule, members: Members, me: int, root: int, source: Block, block: Block,
    after: After, slot: int,
) -> Writing:  # fmt: skip
    return linear_gather(out, members, me, root, source, cut(block, len(members)), after, slot)


def _scatter(
    out: Schedule, members: Members, me: int, root: int, source: Block, block: Block,
    after: After, slot: int,
) -> Writing:  # fmt: skip
    return linear_scatter(out, members, me, root, cut(source, len(members)), block, after, slot)


def _ring_reduce_scatter(
    out: Schedule, members: Members, me: int, source: Block, block: Block, after: After, slot: int
) -> Writing:
    operands = cut(source, len(members))
    return ring_reduce_scatter(out, members, me, operands, block, block.count, after, slot)


def _halving_reduce_scatter(
    out: Schedule, members: Members, me: int, source: Block, block: Block, after: After, slot: int
) -> Writing:
    operands = cut(source, len(members))
    return halving_reduce_scatter(out, members, me, operands, block, after, slot)


def _direct_reduce_scatter(
    out: Schedule, members: Members, me: int, source: Block, block: Block, after: After, slot: int
) -> Writing:
    operands = cut(source, len(members))
    everybody = range(len(members))
    return direct_reduce_scatter(out, members, me, everybody, operands, block, after, slot)


def _ring_allgather(
    out: Schedule, members: Members, me: int, source: Block, block: Block, after: After, slot: int
) -> Writing:
    results = cut(block, len(members))
    ready = bring(out, source, results(me), after)
    return ring_allgather(out, members, me, results, ready, slot, after)


def _doubling_allgather(
    out: Schedule, members: Members, me: int, source: Block, block: Block, after: After, slot: int
) -> Writing:
    results = cut(block, len(members))
    ready = bring(out, source, results(me), after)
    return doubling_allgather(out, members, me, results, ready, slot, after)


def _direct_allgather(
    out: Schedule, members: Members, me: int, source: Block, block: Block, after: After, slot: int
) -> Writing:
    results = cut(block, len(members))
    ready = bring(out, source, results(me), after)
    everybody = range(len(members))
    return direct_allgather(out, members, me, everybody, results, ready, slot, after)


def _pairwise_alltoall(
    out: Schedule, members: Members, me: int, source: Block, block: Block, after: After, slot: int
) -> Writing:
    size = len(members)
    return pairwise_alltoall(out, members, me, cut(source, size), cut(block, size), after, slot)


def _barrier(
    out: Schedule, members: Members, me: int, source: Block, block: Block, after: After, slot: int
) -> Writing:
    assert source.count == block.count == 0
    return dissemination(out, members, me, after, slot)


#: Name -> writer; the last word is the operation that the leaf must be.
EXPANSIONS: dict[str, Writer] = {
    "ring_allreduce": _rootless(ring_allreduce),
    "doubling_allreduce": _rootless(doubling_allreduce),
    "rabenseifner_allreduce": _rootless(rabenseifner_allreduce),
    "two_shot_allreduce": _rootless(two_shot_allreduce),
    "one_shot_allreduce": _rootless(one_shot_allreduce),
    "binomial_bcast": _leaf(_bcast),
    "binomial_reduce": _leaf(_reduce),
    "linear_gather": _leaf(_gather),
    "linear_scatter": _leaf(_scatter),
    "ring_reduce_scatter_block": _rootless(_ring_reduce_scatter),
    "halving_reduce_scatter_block": _rootless(_halving_reduce_scatter),
    "direct_reduce_scatter_block": _rootless(_direct_reduce_scatter),
    "ring_allgather": _rootless(_ring_allgather),
    "doubling_allgather": _rootless(_doubling_allgather),
    "direct_allgather": _rootless(_direct_allgather),
    "bruck_allgather": _rootless(bruck_allgather),
    "pairwise_alltoall": _rootless(_pairwise_alltoall),
    "bruck_alltoall": _rootless(bruck_alltoall),
    "dissemination_barrier": _rootless(_barrier),
}
