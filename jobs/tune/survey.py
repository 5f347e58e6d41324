"""The survey of a machine: stages of hierarchical collectives, timed on ranks.

A stage is the work of a tier on a segment: on its way up (``sum``: ranks of a
group reduce-scatter), on its way down (``gather``: they all-gather), or of the
rails of the last tier (``allreduce``).  All groups of a tier work at the same
time, as they do in the whole collective.  Each stage is a plan of its own.

`survey`, `memory_speed` and `native_model` are collective: every rank calls
them with equal arguments, and they return the same on every rank.  All other
public functions are pure: they list and price stages, or derive numbers of
levels from times of stages.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.analysis.cost_model import Cost, Speed, cost
from closeranks.collectives.builders.patterns.direct_exchange import (
    direct_allgather,
    direct_reduce_scatter,
)
from closeranks.collectives.builders.patterns.recursive_doubling import rabenseifner_allreduce
from closeranks.collectives.builders.patterns.segments import ports_of
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, cut
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan, Writing
from closeranks.collectives.plans.port_tree import Rail, hierarchy
from closeranks.collectives.plans.rank_classes import classify
from closeranks.collectives.plans.schedule import Schedule
from closeranks.collectives.selection.pricing import NativeModel
from closeranks.collectives.selection.tuning_table import Crossing, together
from closeranks.comms.topology.link import SEGMENT_BYTES, Link
from closeranks.comms.topology.topology import Topology
from closeranks.jobs.bench.measuring.timing import Effort, estimate

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.engine.bound_plan import Bound
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.comms.topology.topology import Topology


#: Bytes of an element, float32.
ITEM: Final = 4
#: Sizes go from small messages to segments of so many bytes, by this factor.
_LARGEST, _FACTOR = 4 << 20, 4
_SMALL = 64


class TunedStage(NamedTuple):
    """One stage of one tier.

    Attributes
    ----------
    tier : int
        1 is the innermost.
    level : str
        Level that all its messages cross.
    kind : str
        "sum", "gather" or "allreduce".
    owners : int
        Into how many chunks a segment is cut.
    """

    tier: int
    level: str
    kind: str
    owners: int

    def message_bytes(self, nbytes: int) -> int:
        """Count the bytes of a message when a segment has ``nbytes``."""
        return nbytes // self.owners


class Weight(NamedTuple):
    """Time of a stage on links that are not known yet.

    Attributes
    ----------
    starts : float
        Messages that wait for each other.
    nbytes : float
        Bytes that go one after the other over one rail.
    fixed_s : float
        Seconds beside the wire: adding and copying.
    """

    starts: float
    nbytes: float
    fixed_s: float


def stages(topology: Topology) -> list[TunedStage]:
    """List the stages of a machine, innermost first.

    Parameters
    ----------
    topology : Topology
        Where the ranks sit.

    Returns
    -------
    list of TunedStage
        None on a single rank.
    """
    tree = hierarchy(topology)
    return [
        TunedStage(number, tier.level, kind, tier.owners)
        for number, tier in enumerate(tree.tiers, 1)
        for kind in (("allreduce",) if number == tree.depth else ("sum", "gather"))
    ]


def sizes(stage: TunedStage) -> list[int]:
    """List the segments to measure a stage with, in bytes, ascending.

    Parameters
    ----------
    stage : TunedStage
        The stage.

    Returns
    -------
    list of int
        One of small messages, then from `SEGMENT_BYTES` a message to 4 MiB a
        segment, three at least; all divide evenly.
    """
    found = [SEGMENT_BYTES * stage.owners * _FACTOR**step for step in range(3)]
    while found[-1] * _FACTOR <= _LARGEST:
        found.append(found[-1] * _FACTOR)
    return [_SMALL * stage.owners, *found]


def plan(stage: TunedStage, topology: Topology, nbytes: int) -> Plan:
    """Write a stage down for all rails of its tier.

    Parameters
    ----------
    stage : TunedStage
        The stage.
    topology : Topology
        Where the ranks sit.
    nbytes : int
        Of a segment.

    Returns
    -------
    Plan
        Ranks that take no part have no steps.
    """
    problem = Problem("allreduce", topology, count=nbytes // ITEM, itemsize=ITEM)
    return Plan(problem, Algorithm(stage.kind, _builder(stage), classes=_classes(stage)))


def weigh(stage: TunedStage, topology: Topology, nbytes: int, speed: Speed) -> Weight:
    """Take the price of a stage apart: it is linear in what its level costs.

    Parameters
    ----------
    stage : TunedStage
        The stage.
    topology : Topology
        Where the ranks sit.
    nbytes : int
        Of a segment.
    speed : Speed
        Costs beside the wire.

    Returns
    -------
    Weight
        ``starts * start_s + nbytes / bytes_per_s + fixed_s`` is its price, if all
        ports are busy all the time.
    """
    ports = ports_of(hierarchy(topology), stage.tier)
    rails = topology.links[stage.level].rails or ports

    def price(start_s: float, beside: Speed) -> Cost:
        known = {stage.level: Link(start_s, None, rails)}
        alone = replace(topology, links=known, exceptions={})
        return cost(plan(stage, alone, nbytes), speed=beside)

    bare, beside = price(1.0, Speed()), price(0.0, speed)
    shared = max(1.0, ports / rails)  # as segments() has it
    sent = bare.bytes_per_level[stage.level] * shared
    return Weight(bare.seconds, sent, beside.seconds)


def _builder(stage: TunedStage) -> Callable[[Schedule, Problem], Generator[None, None, object]]:
    write = _WRITERS[stage.kind]

    def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
        rails = hierarchy(problem.topology).rails(out.rank)
        for rail in rails[stage.tier - 1 : stage.tier]:
            yield from write(out, rail, problem.count)

    return build


def _classes(stage: TunedStage) -> Callable[[Problem], NDArray[np.int64]]:
    """Say which ranks do the same: those of one place on rails of one length."""

    def classes(problem: Problem) -> NDArray[np.int64]:
        tree = hierarchy(problem.topology)
        joined = tree.tiers[stage.tier - 1]
        members = np.diff(joined.starts)[tree.rows[stage.tier]]
        takes_part = tree.is_port[stage.tier - 1].astype(np.int64)
        return classify(tree.size, (takes_part, tree.places(stage.tier), members))

    return classes


def _sum(out: Schedule, rail: Rail, count: int) -> Writing:
    """Let the owners of a rail add up their chunks."""
    operands, results = (cut(Block(side, 0, count), rail.owners) for side in (INPUT, OUTPUT))
    own = results(rail.me) if rail.me < rail.owners else None
    everybody = range(rail.owners)
    return direct_reduce_scatter(out, rail.members, rail.me, everybody, operands, own, (), 0)


def _gather(out: Schedule, rail: Rail, count: int) -> Writing:
    """Let the owners of a rail give their chunks to all."""
    chunks = cut(Block(OUTPUT, 0, count), rail.owners)
    return direct_allgather(out, rail.members, rail.me, range(rail.owners), chunks, (), 0)


def _allreduce(out: Schedule, rail: Rail, count: int) -> Writing:
    """Let a rail add up a segment."""
    source, target = (Block(side, 0, count) for side in (INPUT, OUTPUT))
    return rabenseifner_allreduce(out, rail.members, rail.me, source, target, (), 0)


_WRITERS: dict[str, Callable[[Schedule, Rail, int], Writing]] = {
    "sum": _sum,
    "gather": _gather,
    "allreduce": _allreduce,
}


#: What is faster than this was not resolved.
_LEAST_S, _LEAST_S_PER_BYTE = 1e-9, 1e-13


class Point(NamedTuple):
    """One measurement.

    Attributes
    ----------
    stage : TunedStage
        The measured stage.
    nbytes : int
        Bytes of the segment.
    weight : Weight
        Its time on an unknown link.
    seconds : float
        Time of the slowest rank.
    """

    stage: TunedStage
    nbytes: int
    weight: Weight
    seconds: float

    @property
    def wire_s(self) -> float:
        """Time without adding and copying, a thousandth of the whole at least."""
        return max(self.seconds - self.weight.fixed_s, self.seconds * 1e-3)

    @property
    def is_small(self) -> bool:
        """Whether its messages are no segments."""
        return self.stage.message_bytes(self.nbytes) < SEGMENT_BYTES

    def expected_s(self, link: Link) -> float:
        """Give what it should take on a link."""
        start_s = link.start_s(self.stage.message_bytes(self.nbytes)) or 0.0
        on_wire = self.weight.nbytes / (link.bytes_per_s or float("inf"))
        return self.weight.starts * start_s + on_wire + self.weight.fixed_s


def line(xs: Sequence[tuple[float, float]], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit ``seconds = starts * a + nbytes * b`` with ``a, b >= 0``.

    Parameters
    ----------
    xs : sequence of (float, float)
        Starts and bytes of each measurement.
    seconds : sequence of float
        Time of each, above 0.

    Returns
    -------
    tuple of (float, float)
        ``a`` and ``b`` with the least squares of relative errors.
    """
    rows = np.asarray(xs, dtype=float) / np.asarray(seconds, dtype=float)[:, None]
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    rows, ones = rows / scale, np.ones(len(rows))
    best, best_error = (0.0, 0.0), float("inf")
    for columns in ([0, 1], [0], [1]):
        found, *_ = np.linalg.lstsq(rows[:, columns], ones, rcond=None)
        if (found < 0).any():
            continue
        error = float(((rows[:, columns] @ found - 1) ** 2).sum())
        if error < best_error:
            both = np.zeros(2)
            both[columns] = found
            best, best_error = (float(both[0] / scale[0]), float(both[1] / scale[1])), error
    return best


def crossing(points: Sequence[Point], rails: int | None, together: int) -> Crossing:
    """Find what crossing a level costs from the times of its stages.

    Parameters
    ----------
    points : sequence of Point
        All of one level, some of segments and some of small messages.
    rails : int or None
        Of the level's link.
    together : int
        How many ranks shared it, see `Crossing`.

    Returns
    -------
    Crossing
        Bandwidth and start of a message at the size of segments, latency at
        the small size.
    """
    large = [point for point in points if not point.is_small]
    weights = [(point.weight.starts, point.weight.nbytes) for point in large]
    start_s, s_per_byte = line(weights, [point.wire_s for point in large])
    s_per_byte = max(s_per_byte, _LEAST_S_PER_BYTE)
    latencies = [
        (point.wire_s - point.weight.nbytes * s_per_byte) / point.weight.starts
        for point in points
        if point.is_small
    ]
    latency_s = max(min(latencies, default=start_s), _LEAST_S)
    # A start of 0 is one that the noise has hidden.
    link = Link(latency_s, 1 / s_per_byte, rails, "tuned", start_s or latency_s)
    return Crossing(link, together)


def misfit(points: Sequence[Point], link: Link) -> float:
    """Say how far the times of segments are from what a link explains.

    Parameters
    ----------
    points : sequence of Point
        All of one level.
    link : Link
        The link that fits them.

    Returns
    -------
    float
        Largest relative error.
    """
    large = [point for point in points if not point.is_small]
    return max(abs(point.expected_s(link) / point.seconds - 1) for point in large)


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
        Ranks and topology to use.
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
    for stage in stages(world.topology):
        for nbytes in sizes(stage):
            tell(stage.level, stage.kind, nbytes)
            seconds = _typical_s(world.comm, _runner(_bound(world, stage, nbytes)), effort, nbytes)
            weight = weigh(stage, world.topology, nbytes, speed)
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

    x, y = (np.ones(_MEMORY_BYTES // ITEM, np.float32) for _ in range(2))
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
        x = np.ones(nbytes // ITEM, np.float32)
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
    return len(_NATIVE) + sum(len(sizes(stage)) for stage in stages(topology))


def _typical_s(plain: MPI.Intracomm, call: Call, effort: Effort, nbytes: int) -> float:
    """Time of a call on its slowest rank, where calls follow each other.

    The lower quartile of rows: what else runs on a machine only slows.  A card
    that has rested lets a burst pass at any speed.  So calls go in rows
    without a pause, as segments do, and the first ones do not count.
    """
    from mpi4py import MPI

    guess = estimate(plain, call)
    leading, counted = row(nbytes)
    turns = turns_for(effort, guess * (leading + counted))
    times = np.array([_row_s(plain, call, leading, counted) for _ in range(turns)])
    plain.Allreduce(MPI.IN_PLACE, times, op=MPI.MAX)
    return max(float(np.quantile(times, 0.25)), 1e-9)


def row(nbytes: int) -> tuple[int, int]:
    """Count the calls of a row that lead, and the calls that are timed; local.

    Parameters
    ----------
    nbytes : int
        Bytes that each one moves.

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


def _bound(world: World, stage: TunedStage, nbytes: int) -> Bound:
    """Tie a stage to memory."""
    from mpi4py import MPI

    from closeranks.collectives.engine.bound_plan import Bound
    from closeranks.collectives.reduction.op import reducer

    dtype: np.dtype[Any] = np.dtype(np.float32)
    given, taken = (np.ones(nbytes // dtype.itemsize, dtype).view(np.uint8) for _ in range(2))
    return Bound(
        plan(stage, world.topology, nbytes),
        world.rank,
        input=given,
        output=taken,
        dtype=dtype,
        reducer=reducer(MPI.SUM, dtype),
        world=world,
    )
