"""Time the stages of a machine on its own ranks.

Every function here is collective: called by every rank with equal arguments;
what it returns is the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from closeranks.collectives.analysis.cost_model import Speed
from closeranks.collectives.selection.chooser import NativeModel
from closeranks.collectives.selection.tuning_table import Crossing, together
from closeranks.jobs.bench.measuring.repetitions import Effort
from closeranks.jobs.bench.measuring.timing import estimate
from closeranks.jobs.tune import stage_plans as stages
from closeranks.jobs.tune.fit import Point, crossing, line
from closeranks.jobs.tune.stage_plans import Stage

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.engine.bound_plan import Bound
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.comms.topology.topology import Topology

Call = Callable[[], object]
#: Called before each size with the stage, its kind and the bytes.
Tell = Callable[[str, str, int], None]

#: Where a segment takes longer, larger ones of its stage are left out.
_LONG_S = 0.25
#: Sizes of the library's all-reduce, bytes.
_NATIVE = (8, 1 << 10, 1 << 14, 1 << 18, 1 << 20)
#: Cards let some 400 KiB pass at once after a rest, beside what they let pass anyway.
_BURST_BYTES, _COUNTED_BYTES = 2 << 20, 1 << 20
#: Calls that lead in a row at most, and rows of a size.
_LONGEST_ROW, _FEWEST_ROWS, _MOST_ROWS = 128, 3, 25
#: Bytes of a copy and an addition, and how often.
_MEMORY_BYTES, _TURNS = 1 << 20, 5


def survey(world: World, effort: Effort, speed: Speed, tell: Tell) -> list[Point]:
    """Time every stage for every size.

    Parameters
    ----------
    world : World
        Whose ranks, and by whose topology.
    effort : Effort
        How long a size may take.
    speed : Speed
        Costs beside the wire, measured.
    tell : callable
        Hears what comes next.

    Returns
    -------
    list of Point
        In order of tiers and sizes.
    """
    points = []
    for stage in stages.stages(world.topology):
        for nbytes in stages.sizes(stage):
            tell(stage.level, stage.kind, nbytes)
            seconds = _typical_s(world.comm, _runner(_bound(world, stage, nbytes)), effort, nbytes)
            weight = stages.weigh(stage, world.topology, nbytes, speed)
            points.append(Point(stage, nbytes, weight, seconds))
            large = [one for one in points if one.stage == stage and not one.is_small]
            if seconds > _LONG_S and len(large) > 1:
                break
    return points


def crossings(topology: Topology, points: list[Point]) -> dict[str, Crossing]:
    """Find what each level costs; local.

    Parameters
    ----------
    topology : Topology
        Where the ranks sit.
    points : list of Point
        Of `survey`.

    Returns
    -------
    dict of str to Crossing
        Levels innermost first.
    """
    return {
        level: crossing(
            [point for point in points if point.stage.level == level],
            topology.links[level].rails,
            number,
        )
        for level, number in together(topology).items()
    }


def memory_speed(plain: MPI.Intracomm) -> Speed:
    """Time a copy and an addition while all ranks do the same.

    Parameters
    ----------
    plain : MPI.Intracomm
        The ranks.

    Returns
    -------
    Speed
        Of the slowest rank.  Steps cost nothing apart: what the interpreter takes
        for them is in the numbers of the levels.
    """
    from mpi4py import MPI

    x, y = (np.ones(_MEMORY_BYTES // stages.ITEM, np.float32) for _ in range(2))
    best = np.array([float("inf"), float("inf")])
    for _ in range(_TURNS):
        plain.Barrier()
        started = perf_counter()
        np.copyto(y, x)
        copied = perf_counter()
        np.add(x, y, out=y)
        best = np.minimum(best, (copied - started, perf_counter() - copied))
    plain.Allreduce(MPI.IN_PLACE, best, op=MPI.MAX)
    copy_s, add_s = (best / _MEMORY_BYTES).tolist()
    return Speed(0.0, add_s, copy_s)


def native_model(plain: MPI.Intracomm, effort: Effort, tell: Tell) -> NativeModel:
    """Time the library's all-reduce.

    Parameters
    ----------
    plain : MPI.Intracomm
        The ranks.
    effort : Effort
        How long a size may take.
    tell : callable
        Hears what comes next.

    Returns
    -------
    NativeModel
        A line through all sizes.
    """
    seconds = []
    for nbytes in _NATIVE:
        tell("native", "allreduce", nbytes)
        x = np.ones(nbytes // stages.ITEM, np.float32)
        call = partial(plain.Allreduce, x, np.empty_like(x))
        seconds.append(_typical_s(plain, call, effort, nbytes))
    latency_s, s_per_byte = line([(1.0, float(nbytes)) for nbytes in _NATIVE], seconds)
    return NativeModel(latency_s, s_per_byte)


def sizes_told(topology: Topology) -> int:
    """Count how often `survey` and `native_model` tell what comes next.

    Parameters
    ----------
    topology : Topology
        Where the ranks sit; local.

    Returns
    -------
    int
        At most.
    """
    return len(_NATIVE) + sum(len(stages.sizes(stage)) for stage in stages.stages(topology))


def _typical_s(plain: MPI.Intracomm, call: Call, effort: Effort, nbytes: int) -> float:
    """Time of a call on its slowest rank, where calls follow each other.

    The lower quartile of rows: what else runs on a machine only slows.  A card
    lets a burst pass at any speed once it has rested, so calls go in rows without
    a pause, as segments do, and the first ones do not count.
    """
    from mpi4py import MPI

    guess = estimate(plain, call)
    leading, counted = row(nbytes)
    turns = turns_for(effort, guess * (leading + counted))
    times = np.array([_row_s(plain, call, leading, counted) for _ in range(turns)])
    plain.Allreduce(MPI.IN_PLACE, times, op=MPI.MAX)
    return max(float(np.quantile(times, 0.25)), 1e-9)


def row(nbytes: int) -> tuple[int, int]:
    """Count the calls of a row: those that lead, and those whose time counts; local.

    Parameters
    ----------
    nbytes : int
        What each one moves.

    Returns
    -------
    tuple of (int, int)
        Enough to empty what lets a burst pass, unless these are very many calls.
    """
    leading, counted = (-(-wanted // max(nbytes, 1)) for wanted in (_BURST_BYTES, _COUNTED_BYTES))
    return min(leading, _LONGEST_ROW), min(counted, _LONGEST_ROW // 2)


def turns_for(effort: Effort, row_s: float) -> int:
    """Count the rows that an effort affords; local.

    Parameters
    ----------
    effort : Effort
        How long a size may take.
    row_s : float
        Seconds of a row, about.

    Returns
    -------
    int
        Three at least.
    """
    if effort.iterations is not None:
        return effort.iterations
    return max(_FEWEST_ROWS, min(_MOST_ROWS, int(effort.budget_s / max(row_s, 1e-9))))


def _row_s(plain: MPI.Intracomm, call: Call, leading: int, counted: int) -> float:
    """Seconds per counted call of one row on this rank."""
    plain.Barrier()
    for _ in range(leading):
        call()
    started = perf_counter()
    for _ in range(counted):
        call()
    return (perf_counter() - started) / counted


def _runner(bound: Bound) -> Call:
    """Give what runs a stage once."""
    from closeranks.collectives.engine import interpreter
    from closeranks.collectives.engine.progress_engine import engine
    from closeranks.collectives.plans.identity import Identity

    world = bound.world

    def run() -> None:
        identity = Identity(world.epoch, world.sequence())  # on all ranks, for the tags
        if len(bound.need):
            execution = interpreter.execution(bound, identity)
            engine().start(execution, background=False)
            engine().wait(execution)

    return run


def _bound(world: World, stage: Stage, nbytes: int) -> Bound:
    """Tie a stage to memory."""
    from mpi4py import MPI

    from closeranks.collectives.engine.bound_plan import Bound
    from closeranks.collectives.reduction.op import reducer

    dtype: np.dtype[Any] = np.dtype(np.float32)
    given, taken = (np.ones(nbytes // dtype.itemsize, dtype).view(np.uint8) for _ in range(2))
    return Bound(
        stages.plan(stage, world.topology, nbytes),
        world.rank,
        input=given,
        output=taken,
        dtype=dtype,
        reducer=reducer(MPI.SUM, dtype),
        world=world,
    )
