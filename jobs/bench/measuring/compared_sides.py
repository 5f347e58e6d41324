"""The sides of a size - ours, the library's - timed alike on the same buffers."""

from __future__ import annotations

from collections.abc import Callable

from closeranks.collectives.selection.trial import RACES
from closeranks.jobs.bench.measuring.collective_case import Case
from closeranks.jobs.bench.measuring.collective_facts import Collective
from closeranks.jobs.bench.measuring.exact_inputs import pattern
from closeranks.jobs.bench.measuring.plan_facts import call_bytes
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.time_distribution import Timing
from closeranks.jobs.bench.measuring.timing import clock, estimate


def make_case(session: Session, collective: Collective, nbytes: int) -> Case:
    """Make buffers and inputs; collective where they are shared ones.

    Parameters
    ----------
    session : Session
        Says type and reduction.
    collective : Collective
        The operation.
    nbytes : int
        Size asked for.

    Returns
    -------
    Case
        On the session's communicator.
    """
    request = session.request
    op = request.op if collective.reduces else "sum"
    inputs = pattern(session.ranks, request.dtype, op)
    empty = session.comm.empty if request.empty else None
    return Case(collective, nbytes, inputs, session.comm, empty, persistent=request.persistent)


def settle(session: Session, collective: Collective, case: Case, algorithm: str) -> None:
    """Make the calls that are trials, so that none of them is timed; collective.

    Parameters
    ----------
    session : Session
        Where.
    collective : Collective
        The operation.
    case : Case
        Its buffers.
    algorithm : str
        What is passed as ``algorithm=``; only ``"auto"`` tries anything.
    """
    if algorithm != "auto":
        return
    nbytes = call_bytes(collective, case.problem)
    call = case.ours(algorithm)
    for _ in range(RACES):
        explained = session.comm.explain(collective.name, nbytes, session.request.dtype)
        for _ in range(explained.calls_to_settle):
            call()


def time_sides(
    session: Session,
    sides: dict[str, Callable[[], object]],
    nbytes: int,
    guess: float | None = None,
    batched: bool | None = None,
) -> dict[str, Timing]:
    """Estimate, warm up, plan and time; collective.

    Parameters
    ----------
    session : Session
        Says how much time a size may take.
    sides : dict of str to callable
        What to time; equal callables are estimated once.
    nbytes : int
        Size of the operation.
    guess : float, optional
        Seconds per call, where it is known already.
    batched : bool, optional
        Batches or single calls; default: the fastest side decides.

    Returns
    -------
    dict of str to Timing
        By side.
    """
    effort, plain = session.request.effort, session.plain
    guesses: dict[Callable[[], object], float] = {}
    for call in sides.values():
        if call not in guesses:
            guesses[call] = estimate(plain, call) if guess is None else guess
            for _ in range(effort.warmups(guesses[call], nbytes)):
                call()
    estimates = [guesses[call] for call in sides.values()]
    return clock(plain, sides, effort.schedule(estimates, nbytes, batched=batched))
