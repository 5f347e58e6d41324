"""What is under way while the program computes: one collective, or gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from closeranks.jobs.bench.measuring.collective_case import differing, reduction

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.jobs.bench.measuring.collective_case import Case
    from closeranks.jobs.bench.measuring.exact_inputs import Pattern

#: Gradients, each a bucket of its own: the last one has nothing left to hide behind.
GRADIENTS = 16

#: Computes part k of n, called with both.
Compute = Callable[[int, int], None]


class Errand(Protocol):
    """Communication that leaves the main thread time to compute."""

    name: str

    def run(self, compute: Compute) -> None:
        """Start, compute, and wait; collective."""

    def refill(self) -> None:
        """Spoil what is received, and make what is sent."""

    def wrong(self) -> int:
        """Count this rank's wrong elements; local."""

    def close(self) -> None:
        """Let go of what it holds."""


class Single:
    """One non-blocking collective: starts, then everything is computed.

    Parameters
    ----------
    case : Case
        The collective and its buffers.
    algorithm : str
        What is passed as ``algorithm=``.
    method : str
        What it is called.
    """

    def __init__(self, case: Case, algorithm: str, method: str) -> None:
        self._case, self._begin = case, case.begins(algorithm)
        self.name = f"I{method.lower()}"

    def run(self, compute: Compute) -> None:
        """Start, compute, and wait; collective."""
        request = self._begin()
        compute(0, 1)
        request.Wait()

    def refill(self) -> None:
        """Spoil the receive buffer."""
        self._case.refill()

    def wrong(self) -> int:
        """Count this rank's wrong elements; local."""
        return self._case.wrong()

    def close(self) -> None:
        """Do nothing: requests are gone."""


class Gradients:
    """Gradients in buckets: each is ready when its part has been computed.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    nbytes : int
        Bytes of all gradients together, rounded up to whole ones.
    pattern : Pattern
        Inputs and results.
    algorithm : str
        As for `Single`.
    """

    name = "bucketed"

    def __init__(self, comm: Communicator, nbytes: int, pattern: Pattern, algorithm: str) -> None:
        self._rank, self._ranks, self._pattern = comm.Get_rank(), comm.Get_size(), pattern
        self._each = max(1, -(-nbytes // (pattern.dtype.itemsize * GRADIENTS)))
        self._arrays = {str(k): np.empty(self._each, pattern.dtype) for k in range(GRADIENTS)}
        with comm.using(algorithm=algorithm):
            self._buckets = comm.bucketed(
                self._arrays,
                bucket_bytes=self._each * pattern.dtype.itemsize,
                op=reduction(pattern.op),
            )
        self.refill()

    def run(self, compute: Compute) -> None:
        """Compute one gradient after the other, the last one first, as a backward pass."""
        for part, name in enumerate(reversed(self._arrays)):
            compute(part, GRADIENTS)
            self._buckets.ready(name)
        self._buckets.wait()

    def refill(self) -> None:
        """Make the gradients anew: their sums take their places."""
        for start, array in self._parts():
            array[:] = self._pattern.given(self._rank, start, self._each)

    def wrong(self) -> int:
        """Count this rank's wrong elements after one run; local."""
        rounded = self._pattern.op == "mean"
        return sum(
            differing(array, self._pattern.reduced(self._ranks, start, self._each), rounded=rounded)
            for start, array in self._parts()
        )

    def close(self) -> None:
        """Close the buckets."""
        self._buckets.close()

    def _parts(self) -> list[tuple[int, Any]]:
        """List where each gradient begins in the pattern, and the gradient."""
        return [(k * self._each, array) for k, array in enumerate(self._arrays.values())]
