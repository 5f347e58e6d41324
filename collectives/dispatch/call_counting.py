"""Calls that are counted, so that ranks can say which one they have refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from mpi4py import MPI

from closeranks.collectives.arguments.native_handover import UNREADABLE
from closeranks.collectives.engine.interruptible_calls import SET_UP, interruptible
from closeranks.collectives.selection import call_options
from closeranks.collectives.selection.call_options import AUTO
from closeranks.comms.exit import signal_handlers
from closeranks.comms.mpi import ulfm
from closeranks.errors import Error, Revoked

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.init_state import Family
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.comms.liveness.call_counter import Counted

_T = TypeVar("_T")


class Counting:
    """What every call of one communicator goes through.

    Attributes
    ----------
    plain : MPI.Intracomm
        The communicator as mpi4py knows it.
    family : Family
        What all communicators of one `init` share.
    calls : Counted
        Its calls.
    """

    plain: MPI.Intracomm
    family: Family
    calls: Counted

    @property
    def careful(self) -> MPI.Intracomm:
        """Give ``plain`` for what is set up: its calls end where a rank has given up."""
        return self.plain if ulfm.is_on() else interruptible(self.plain, self.family.notices)

    def counted(self, operation: str, serve: Callable[..., _T], *arguments: Any) -> _T:
        """Count a call and serve it; where bad input keeps it from that, all hear.

        Parameters
        ----------
        operation : str
            What is called.
        serve : callable
            Takes it, and the ``arguments``.
        *arguments
            For it.

        Returns
        -------
        object
            What it gives.
        """
        number = self.calls.begin()
        with signal_handlers.Together():
            try:
                return serve(operation, *arguments)
            except UNREADABLE as error:
                self.refused(number, operation, error)
                raise
            except Revoked as error:
                if error.operation == SET_UP:
                    error.operation = operation
                raise
            except (Error, MPI.Exception):
                raise
            except BaseException as error:
                if (
                    signal_handlers.are_held() or self._is_unheard()
                ):  # it ends half-way: others wait
                    self.family.notices.leave(error)
                    self.family.world.revoke()
                raise

    def _is_unheard(self) -> bool:
        """Whether this rank has given up a world of several nodes: they see no word."""
        world: World | None = self.__dict__.get("world")
        if world is None or not world.revoked or ulfm.is_on():
            return False
        return world.node.size < world.size and self.family.notices.notice is None

    def refused(self, number: int, operation: str, error: Exception) -> None:
        """Tell that this rank has refused a call: others may be in it.  Local.

        Parameters
        ----------
        number : int
            What `calls` has given it.
        operation : str
            What it was.
        error : Exception
            What is wrong with it.
        """
        self.family.notices.refuse(self.calls, number, operation, error)

    def meet(self) -> None:
        """Wait for all ranks before or after what is timed; as short as can be."""
        with self.family.notices.inside:
            MPI.Intracomm.Barrier(self.plain)

    def wire(self) -> str | None:
        """Give the type in which half-precision sums travel, None for their own."""
        options = call_options.active(self.family)
        return None if options is None else options.wire

    def is_timed(self) -> bool:
        """Whether a call has a deadline.  Local."""
        return call_options.deadline(self.family) is not None

    def wanted(self, operation: str, algorithm: str) -> str:
        """Give the algorithm that the call or a ``using`` block asks for."""
        if not isinstance(algorithm, str) or algorithm != AUTO:
            return call_options.known_name(operation, algorithm, operation)
        options = call_options.active(self.family)
        return options.algorithms.get(operation, AUTO) if options else AUTO
