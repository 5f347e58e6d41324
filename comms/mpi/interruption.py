"""An exception of a signal handler, kept until a collective step has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from closeranks.comms.wait import wait
from closeranks.errors import Error


class Interruption:
    """One exception from outside of a wait, which is kept until the wait has ended.

    Ctrl-C, or an alarm of the program, may come while ranks agree.  If this rank
    left then, it would not know the agreed result, and the others would not know
    that.  A second exception is let through at once.

    Attributes
    ----------
    error : BaseException or None
        To be raised afterwards.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def wait(self, ready: Callable[[], bool], **options: Any) -> bool:
        """Wait to the end, as `closeranks.comms.wait.wait`.

        Local.

        Parameters
        ----------
        ready : callable
            May be asked again after it has raised.
        **options
            As there; exceptions of their own are `Error` or the library's, not kept.

        Returns
        -------
        bool
            As there.
        """
        try:
            return wait(ready, **options)
        except (Error, MPI.Exception):
            raise
        except BaseException as error:
            if self.error is not None:
                raise
            self.error = error
        return wait(ready, **options)
