"""An exception of a signal handler, kept until a collective step has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from closeranks.comms.wait import wait
from closeranks.errors import Error


class Interruption:
    """One exception from outside of a wait, which is kept until the wait has ended.

    Ctrl-C, or an alarm of the program's own, knows nothing of what ranks are
    agreeing on.  Who left then would not know what the others have agreed, nor
    they that it does not.  The second one is let through, for who has no patience.

    Attributes
    ----------
    error : BaseException or None
        What is to be raised afterwards.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def wait(self, ready: Callable[[], bool], **options: Any) -> bool:
        """Wait as `closeranks.comms.wait.wait` does, to the end.

        Local.

        Parameters
        ----------
        ready : callable
            May be asked again after it has raised.
        **options
            As there; what they raise themselves is an `Error`, or the library's.

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
