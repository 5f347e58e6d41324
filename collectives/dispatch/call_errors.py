"""Errors that end a call: who hears of them, and how calls of setting up hear."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from mpi4py import MPI

from closeranks.collectives.arguments.native_handover import UNREADABLE
from closeranks.collectives.engine.error_translation import SET_UP, interruptible
from closeranks.comms.exit import signal_handlers
from closeranks.comms.mpi import ulfm
from closeranks.errors import Error, Revoked

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.init_state import Family

_T = TypeVar("_T")


def careful_of(plain: MPI.Intracomm, family: Family) -> MPI.Intracomm:
    """Give a communicator whose calls end where a rank has given up, for setting up."""
    return plain if ulfm.is_on() else interruptible(plain, family.notices)


def tell(service: Service, number: int, operation: str, error: BaseException) -> None:
    """Tell the others of an error that ends a call, where they may wait.  Local.

    Parameters
    ----------
    service : Service
        Of the communicator.
    number : int
        What its counter of calls has given the call.
    operation : str
        What it is.
    error : BaseException
        Is raised.
    """
    family = service.family
    if isinstance(error, Error) and error.is_heard:
        return
    if isinstance(error, UNREADABLE):
        service.refused(number, operation, error)
    elif isinstance(error, Revoked):
        if error.operation == SET_UP:
            error.operation = operation
    elif isinstance(error, (Error, MPI.Exception)):
        return
    elif signal_handlers.are_deferred() or _is_unheard(service):  # it ends half-way
        family.notices.leave(error)
        family.world.revoke()


def in_one_piece(service: Service, serve: Callable[..., _T]) -> Callable[..., _T]:
    """Let the others hear of what ends a call that is made of several.

    Local.  If the handler of a signal raises in one of them, and the program goes
    on, this rank makes no further one, and the others would wait for it.

    Parameters
    ----------
    service : Service
        Of the communicator.
    serve : callable
        Makes the calls.

    Returns
    -------
    callable
        Does the same; before an exception that is none of this package's or the
        library's, it gives the communicator up.
    """

    def served(*arguments: Any) -> _T:
        try:
            return serve(*arguments)
        except (Error, MPI.Exception, *UNREADABLE):
            raise
        except BaseException as error:
            service.family.notices.leave(error)
            service.family.world.revoke()
            raise

    return served


def serve_in_one_piece(
    service: Service, operation: str, serve: Callable[..., tuple[_T, str]], *arguments: Any
) -> _T:
    """Serve a call that is made of several, and count it.

    Collective.

    Parameters
    ----------
    service : Service
        Of the communicator.
    operation : str
        Name of the call in statistics.
    serve : callable
        (operation, arguments) -> the result, and the algorithm that was taken.
    *arguments
        Of the call.

    Returns
    -------
    object
        The result.
    """
    started = time.perf_counter()
    result, name = service.counted(operation, in_one_piece(service, serve), *arguments)
    service.counters.count(operation, name, time.perf_counter() - started)
    return result


def _is_unheard(service: Service) -> bool:
    """Whether this rank has given up a world of several nodes: they see no word."""
    world: World | None = service.__dict__.get("world")
    if world is None or not world.revoked or ulfm.is_on():
        return False
    return world.node.size < world.size and service.family.notices.notice is None
