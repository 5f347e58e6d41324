"""The benchmark ``steps``: the cost of a step of a plan.

The plan is a chain of exchanges of 16 bytes between neighbours in a ring of
the ranks: the bytes cost nothing, the rest is the interpreter and the library.
Either interpreter runs it, driven by the caller and then by the progress
thread, while the main thread sleeps and while it computes in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from closeranks.jobs.bench.benches.point_to_point import describe
from closeranks.jobs.bench.benches.registration import Benchmark, TableColumn, one_item
from closeranks.jobs.bench.measuring.number_text import short
from closeranks.jobs.bench.measuring.timing import Timing, bandwidth

if TYPE_CHECKING:
    from closeranks.collectives.engine.bound_plan import Bound
    from closeranks.collectives.engine.execution import Execution
    from closeranks.collectives.plans.collective import Problem
    from closeranks.collectives.plans.schedule import Schedule
    from closeranks.jobs.bench.measuring.session import Session

Row = dict[str, Any]
Make = Callable[..., "Execution"]

#: Steps of the plan, half of them sends, and what each message carries.
STEPS = 200
NBYTES = 16
#: Runs driven by the caller, and least and most of those beside a thread.
_RUNS = 200
_FEWEST, _MOST = 3, 25
_LIMIT_S = 600.0


def measure_steps(session: Session) -> list[Row]:
    """Measure the interpreters that are there; collective.

    Parameters
    ----------
    session : Session
        Where.

    Returns
    -------
    list of dict
        A row for each interpreter, the same on every rank.  Times are per step;
        ``thread_ms_quiet`` and ``thread_ms_busy`` are those of `STEPS` steps
        driven by the thread, ``busy_over_quiet`` is their ratio; not on one rank,
        and not without MPI_THREAD_MULTIPLE.
    """
    from closeranks.collectives.engine import interpreter
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.execution import Execution

    world = World(0, session.plain, session.comm.hierarchy)
    interpreter.prepare(world, together=True)
    makes: dict[str, Make] = {"python": Execution, "compiled": interpreter.execution}
    if not min(session.plain.allgather(bool(world.compiled))):
        del makes["compiled"]
    received = np.zeros(NBYTES, np.uint8)
    bound = _bound(world, received)
    rows = []
    for name, make in makes.items():
        received[:] = 0
        rows.append(_row(session, name, partial(_run, session, bound, make), received))
    world.close()
    return rows


def _bound(world: Any, received: np.ndarray[Any, Any]) -> Bound:
    """Write the plan and tie it to memory."""
    from closeranks.collectives.engine.bound_plan import Bound
    from closeranks.collectives.plans.collective import Problem
    from closeranks.collectives.plans.plan_type import Algorithm, Plan

    problem = Problem("allreduce", world.topology, count=NBYTES)
    sent = np.arange(NBYTES, dtype=np.uint8)
    return Bound(
        Plan(problem, Algorithm("steps", _chain)),
        world.rank,
        input=sent,
        output=received,
        dtype=np.dtype(np.uint8),
        world=world,
    )


def _chain(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Send to the right and receive from the left, one exchange after the other."""
    from closeranks.collectives.plans.block import INPUT, OUTPUT, Block

    size, before = problem.size, ()  # type: tuple[int, tuple[int, ...]]
    for slot in range(STEPS // 2):
        sent = out.send((out.rank + 1) % size, Block(INPUT, 0, NBYTES), slot, before)
        got = out.receive((out.rank - 1) % size, Block(OUTPUT, 0, NBYTES), slot, before)
        before = (sent, got)
    yield


def _run(session: Session, bound: Bound, make: Make, driver: str) -> float:
    """Run the plan once; returns the seconds of the slowest rank."""
    from closeranks.collectives.engine.progress_engine import engine
    from closeranks.collectives.plans.identity import Identity
    from closeranks.comms.wait import Deadline

    session.plain.Barrier()
    world, ended = bound.world, Event()
    began = perf_counter()
    identity = Identity(world.epoch, world.sequence())
    execution = make(bound, identity, deadline=Deadline(_LIMIT_S))
    execution.when_finished(lambda _: ended.set())
    engine().start(execution, background=driver != "caller")
    if driver == "quiet":
        ended.wait()
    elif driver == "busy":
        _compute(ended)
    engine().wait(execution)
    return float(session.plain.allreduce(perf_counter() - began, _max()))


def _compute(ended: Event) -> None:
    """Keep the GIL busy until told; looks up now and then."""
    total = 0
    while not ended.is_set():
        for number in range(1000):
            total += number


def _row(
    session: Session, name: str, run: Callable[[str], float], received: np.ndarray[Any, Any]
) -> Row:
    run("caller")
    seconds = np.array([run("caller") for _ in range(_RUNS)]) / STEPS
    timing = Timing(seconds, float(seconds.mean()), _RUNS * STEPS, True)
    wrong = int(np.count_nonzero(received != np.arange(NBYTES)))
    return {
        **describe(session, "steps", NBYTES, timing),
        **bandwidth(NBYTES, timing.p50_us, 1.0),
        "algorithm": name,
        "wrong": session.plain.allreduce(wrong) if session.request.check else None,
        **_beside(session, run),
    }


def _beside(session: Session, run: Callable[[str], float]) -> Row:
    """Time the thread, with the main thread asleep and at work in turn."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE or session.ranks == 1:
        return {}  # a rank alone has done all steps before the thread wakes
    quiet: list[float] = []
    busy: list[float] = []
    spent = 0.0
    while len(busy) < _FEWEST or (len(busy) < _MOST and spent < session.request.effort.budget_s):
        quiet.append(run("quiet"))
        busy.append(run("busy"))
        spent += quiet[-1] + busy[-1]
    ours, beside = float(np.median(quiet)), float(np.median(busy))
    return {
        "thread_ms_quiet": ours * 1e3,
        "thread_ms_busy": beside * 1e3,
        "busy_over_quiet": beside / ours,
    }


def _max() -> Any:
    from mpi4py import MPI

    return MPI.MAX


BENCHMARKS = (
    Benchmark(
        "steps",
        items=one_item(NBYTES, "native"),
        measure=lambda session, _item: measure_steps(session),
        columns=(
            TableColumn("thread_ms_quiet", "quiet ms", 9, short),
            TableColumn("thread_ms_busy", "busy ms", 9, short),
            TableColumn("busy_over_quiet", "b/q", 8, lambda value: f"{value:.2f}x"),
        ),
        test="Step of a Plan Latency Test",
        titled=False,
    ),
)
