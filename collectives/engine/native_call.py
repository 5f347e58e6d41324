"""An operation of the MPI library, driven by the engine like a plan.

Needed where more is wanted than the library gives: a deadline, or something to
do when it is over.  It is a plan of one step that waits for the request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from closeranks.collectives.arguments import native_handover
from closeranks.collectives.arguments.collective_call import BYTE
from closeranks.collectives.engine.bound_plan import Bound
from closeranks.collectives.engine.error_translation import is_gone
from closeranks.collectives.engine.execution import Execution
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.identity import Identity
from closeranks.collectives.plans.plan_type import Algorithm, Plan

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.arguments.collective_call import CollectiveCall
    from closeranks.collectives.arguments.native_handover import Handover
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.plans.schedule import Schedule
    from closeranks.comms.wait import Deadline

_T = TypeVar("_T")


class Aside:
    """A world, for executions that send no messages of their own.

    They take no number and no tags, so that it does not matter which ranks run
    one.

    Parameters
    ----------
    world : World
        Whose errors and revocation they share.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.undrained: dict[int, None] = {}  # of these alone: they keep no plan waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def first_tag(self, sequence: int) -> int:
        """Give a tag that nobody uses."""
        del sequence
        return 0


def _await_request(script: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write the one step."""
    del problem
    script.event(0)
    yield


class LibraryCall(Execution):
    """Waits for an operation of the library.

    Attributes
    ----------
    operation : str
        Name of the collective.
    request : MPI.Request
        Of it.
    """

    __slots__ = ("request",)
    request: MPI.Request

    def is_held(self) -> bool:
        """Whether the library is not through, dead or not: it may send and write yet."""
        return not is_gone(self.request)


_AWAIT = Algorithm("native", _await_request)


def begin(
    world: World,
    plain: MPI.Intracomm,
    operation: str,
    given: Handover,
    take: Callable[[MPI.Request], _T],
) -> _T:
    """Begin an operation of the library, for who follows it from then on.

    Local.  Where the handler of a signal raises before that, nobody would wait for
    it: it is dead, and keeps its buffers as long as the library has them.

    Parameters
    ----------
    world : World
        Which is given up then.
    plain : MPI.Intracomm
        Whose method is called.
    operation : str
        Name of the collective.
    given : Handover
        With what it is called.
    take : callable
        Makes of the request what it is followed by.

    Returns
    -------
    object
        What that has made.
    """
    begun: list[MPI.Request] = []
    try:
        native_handover.begin(plain, given, begun)
        return take(begun[0])
    except BaseException as error:
        if begun:
            engine().fail(follow(world, operation, begun[0], given, None), error)
        raise


def followed(
    world: World, plain: MPI.Intracomm, demand: CollectiveCall, deadline: Deadline | None
) -> Execution:
    """Begin a call of the library that the engine follows, see `begin`.

    Local.

    Parameters
    ----------
    world : World
        Whose revocation ends it.
    plain : MPI.Intracomm
        Whose method is called.
    demand : CollectiveCall
        The call.
    deadline : Deadline or None
        When it fails.

    Returns
    -------
    Execution
        To be started on the engine.

    Raises
    ------
    PeerLost, Revoked
        If the world is revoked; local.
    """
    world.check(demand.operation)
    given, operation = native_handover.hand_over(demand), demand.operation

    def take(request: MPI.Request) -> Execution:
        return follow(world, operation, request, given, deadline)

    return begin(world, plain, operation, given, take)


def follow(
    world: World,
    operation: str,
    request: MPI.Request,
    given: Handover,
    deadline: Deadline | None,
) -> Execution:
    """Make an execution that is over when a request is.

    Local; to be started on the engine.

    Parameters
    ----------
    world : World
        Whose revocation ends it.
    operation : str
        Name of the collective.
    request : MPI.Request
        Of the operation, under way.
    given : Handover
        What it was called with, and what to do when it is over.
    deadline : Deadline or None
        When it fails.

    Returns
    -------
    Execution
        Takes no number of the world.
    """
    problem = Problem("barrier", world.topology)
    bound = Bound(
        Plan(problem, _AWAIT),
        world.rank,
        input=None,
        output=None,
        dtype=BYTE,
        world=Aside(world),  # type: ignore[arg-type]
        events=(request.Test,),
        epilogue=given.finish,
        keeps=given.arguments,  # mpi4py's request lets go of packed copies
    )
    call = LibraryCall(bound, Identity(world.epoch, -1), deadline=deadline)
    call.operation, call.request = operation, request
    return call
