"""Work of the main thread while a collective is under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from closeranks.jobs.bench.measuring.timing import together

if TYPE_CHECKING:
    from mpi4py import MPI

#: Elements of a call of about a millisecond, and of one of about 5 us.  NumPy keeps the GIL
#: over up to 500 elements and lets go of it above.
_ELEMENTS = {"long": 1 << 16, "short": 250}
#: Calls are timed together for so long, or for half of what is wanted.
_LEAST_S = 0.3


@dataclass(frozen=True)
class Work:
    """Calls of NumPy, all alike.

    Parameters
    ----------
    name : str
        ``"long"`` or ``"short"``.
    call : callable
        One call.
    """

    name: str
    call: Callable[[], object]

    def run(self, calls: int) -> None:
        """Make some calls.  Local."""
        call = self.call
        for _ in range(calls):
            call()

    def calls(self, plain: MPI.Intracomm, seconds: float) -> int:
        """Count the calls that take so long while all ranks make them; collective.

        Parameters
        ----------
        plain : MPI.Intracomm
            All ranks.
        seconds : float
            How long.

        Returns
        -------
        int
            At least 1, the same on every rank.
        """
        calls = 1
        took = together(plain, self.call, calls)
        while took < min(seconds / 2, _LEAST_S):
            calls *= 4
            took = together(plain, self.call, calls)
        return max(1, round(seconds / took * calls))


def works() -> tuple[Work, ...]:
    """Make the two kinds of computation.

    Returns
    -------
    tuple of Work
        ``long``: calls that let go of the GIL; ``short``: a loop of calls that
        keep it, as over small arrays.  Neither starts threads, as a product of
        matrices may.
    """
    return tuple(Work(name, _sine(elements)) for name, elements in _ELEMENTS.items())


def _sine(elements: int) -> Callable[[], object]:
    """Make a call on memory of its own."""
    angles = np.linspace(0, 1, elements)
    sines = np.empty_like(angles)
    return lambda: np.sin(angles, out=sines)
