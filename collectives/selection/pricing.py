"""Predicted times of the algorithms of a communicator; pure.

A price comes from `cost` over the links of the topology, and the library's
from a few calls that were timed at init.  A price is a guess.  Kernels in node
memory are timed beside the library, which gives their share of its price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.analysis.cost_model import Cost, Speed, cost
from closeranks.collectives.arguments.call_key import UNSIZED, Agreed
from closeranks.collectives.builders.catalogue import ALGORITHMS, find
from closeranks.collectives.plans.collective import OF_ONE, VECTOR, Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.selection.call_options import NATIVE, SHARED
from closeranks.comms.topology.topology import Topology
from closeranks.errors import UsageError

#: Plans with more steps a rank than this are not priced where others are.
MANY_STEPS: Final = 20_000
#: Size classes whose plans are priced; those between are interpolated, linearly in bytes.
_ANCHORS: Final = (0, 4, 13, 17, 21, 25, 29, 33)
#: All-reduces with prices that stand for ours where the library's is guessed.
_YARDSTICKS: Final = ("recursive_doubling", "rabenseifner")


@dataclass(frozen=True)
class NativeModel:
    """The library's time, ``latency_s + bytes * s_per_byte``, by operation.

    Measured on a few calls of the all-reduce at init and agreed; another
    operation is priced by its ratio to the all-reduce among our own plans.
    """

    latency_s: float
    s_per_byte: float

    def seconds(self, nbytes: float) -> float:
        """Time of an all-reduce of ``nbytes``."""
        return self.latency_s + nbytes * self.s_per_byte


class KernelShares(NamedTuple):
    """What share of the library's time an operation takes in node memory.

    Attributes
    ----------
    nbytes : tuple of int
        Sizes that were measured, ascending.
    shares : tuple of float
        Of the library's time, for each size; agreed.
    """

    nbytes: tuple[int, ...]
    shares: tuple[float, ...]

    def share(self, nbytes: int) -> float:
        """Give the share for a size, interpolated between those measured."""
        return float(np.interp(math.log2(max(nbytes, 1)), np.log2(self.nbytes), self.shares))


class Estimates(NamedTuple):
    """Predicted times of a kind of call.

    Attributes
    ----------
    predictions : dict of str to float
        Seconds by algorithm, "native" with a price where there is one.
    objections : dict of str to str
        Why the others are no candidates.
    allows_native : bool
        Whether the library is a candidate, priced or not.
    """

    predictions: dict[str, float]
    objections: dict[str, str]
    allows_native: bool


class Pricing:
    """Prices the algorithms of one communicator; equal on all its ranks.

    Parameters
    ----------
    topology : Topology
        Links measured and agreed, or made up.
    native : NativeModel or None
        The library's agreed times; without it "native" has no price.
    speed : Speed
        Costs beside the wire, agreed.
    allow_native : bool
        False for ``deterministic`` communicators.
    native_bytes : int or None
        The library's collectives serve calls of up to so many bytes in all,
        see `closeranks.comms.mpi.ulfm.BRIEF_BYTES`.
    kernels : dict of str to KernelShares, optional
        By operation, as far as measured: where all ranks share one node.

    Attributes
    ----------
    topology, native, speed, allow_native, native_bytes, kernels
        As given.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        native: NativeModel | None,
        speed: Speed,
        allow_native: bool,
        native_bytes: int | None,
        kernels: dict[str, KernelShares] | None = None,
    ) -> None:
        self.topology, self.native, self.speed = topology, native, speed
        self.allow_native, self.native_bytes = allow_native, native_bytes
        self.kernels = dict(kernels or {})
        self._known: dict[Agreed, Estimates] = {}
        self._priced: dict[Agreed, tuple[dict[str, float], dict[str, str]]] = {}

    def copy(self) -> Pricing:
        """Give the same for another communicator, which measures kernels by itself.

        Local.  What plans cost is kept once for both: it depends on no call.
        """
        made = Pricing(
            self.topology, native=self.native, speed=self.speed,
            allow_native=self.allow_native, native_bytes=self.native_bytes, kernels=self.kernels,
        )  # fmt: skip
        made._priced = self._priced
        return made

    def estimates(self, call: Agreed) -> Estimates:
        """Give the predicted times of a kind of call.

        Raises
        ------
        UsageError
            If no algorithm can serve it.
        """
        known = self._known.get(call)
        if known is None:
            known = self._known[call] = self._estimated(call)
        return known

    def _estimated(self, call: Agreed) -> Estimates:
        problem = self.example(call)
        predictions, objections = self._predicted(call, problem)
        objection = self.objection(call)
        if objection is not None:
            objections[NATIVE] = objection
        elif self.native is not None:
            predictions[NATIVE] = self._native_s(problem, predictions)
            share = self.kernel_share(call)
            if share is not None and SHARED in predictions:
                predictions[SHARED] = share * predictions[NATIVE]
        can_library = call.native and self.allow_native
        if not predictions and not can_library:
            raise UsageError(call.operation, "no algorithm applies", _listed(objections))
        return Estimates(predictions, objections, objection is None)

    def _predicted(self, call: Agreed, problem: Problem) -> tuple[dict[str, float], dict[str, str]]:
        """Predict plans between two sizes that are priced: a price takes a millisecond."""
        low, high = _anchors_around(call)
        if low == high:
            return self._priced_at(call)
        below, above = (self._priced_at(call._replace(size_class=at)) for at in (low, high))
        least, most = (1 << max(at - 1, 0) for at in (low, high))
        share = (call.nbytes - least) / (most - least)
        predictions, objections = {}, {}
        for algorithm in ALGORITHMS.get(call.operation, ()):
            name = algorithm.name
            objection = algorithm.objection(problem)
            if objection:
                objections[name] = objection
            elif name in below[0] and name in above[0]:
                predictions[name] = (1 - share) * below[0][name] + share * above[0][name]
            elif name in below[1] and name in above[1]:
                objections[name] = below[1][name]
            else:
                predictions[name] = cost(Plan(problem, algorithm), speed=self.speed).seconds
        return predictions, objections

    def _priced_at(self, call: Agreed) -> tuple[dict[str, float], dict[str, str]]:
        """Price all plans for one size, once."""
        known = self._priced.get(call)
        if known is None:
            prices, objections = self._prices(self.example(call))
            predictions = {name: price.seconds for name, price in prices.items()}
            known = self._priced[call] = predictions, objections
        return known

    def note_kernels(self, operation: str, shares: KernelShares) -> None:
        """Price an operation anew, since its kernels were measured.  On all ranks."""
        self.kernels[operation] = shares
        self._known.clear()

    def kernel_share(self, call: Agreed) -> float | None:
        """Give the share of the library's time that a kernel takes, None if unknown.

        An operation that was not measured is taken for an all-reduce.
        """
        known = self.kernels.get(call.operation) or self.kernels.get("allreduce")
        return None if known is None else known.share(call.nbytes)

    def library_s(self, nbytes: int) -> float:
        """Give the time of the library's all-reduce, 0 where it was not timed."""
        return 0.0 if self.native is None else self.native.seconds(nbytes)

    def cheapest(self, problem: Problem) -> str:
        """Name of the cheapest plan for exactly this problem, native left aside."""
        prices, objections = self._prices(problem)
        if not prices:
            raise UsageError(problem.operation, "no algorithm applies", _listed(objections))
        return min(prices, key=lambda name: prices[name].seconds)

    def objection(self, call: Agreed) -> str | None:
        """Say why the library's own is no candidate, or None."""
        if not call.native:
            return "the library cannot"
        if not self.allow_native:
            return "deterministic"
        if self.native_bytes is None or call.operation == "barrier":
            return None
        most = (1 << call.size_class) * (1 if call.operation in OF_ONE else self.topology.size)
        if call.operation not in UNSIZED and most <= self.native_bytes:
            return None
        return f"more than {self.native_bytes} bytes in all may hang when a rank dies"

    def _prices(self, problem: Problem) -> tuple[dict[str, Cost], dict[str, str]]:
        prices: dict[str, Cost] = {}
        objections: dict[str, str] = {}
        long: list[Algorithm] = []
        for algorithm in ALGORITHMS.get(problem.operation, ()):
            objection = algorithm.objection(problem)
            if objection:
                objections[algorithm.name] = objection
            elif _is_long(Plan(problem, algorithm)):
                long.append(algorithm)
            else:
                prices[algorithm.name] = cost(Plan(problem, algorithm), speed=self.speed)
        for algorithm in long:
            if prices:
                objections[algorithm.name] = f"more than {MANY_STEPS} steps a rank"
            else:
                prices[algorithm.name] = cost(Plan(problem, algorithm), speed=self.speed)
        return prices, objections

    def _native_s(self, problem: Problem, predictions: Mapping[str, float]) -> float:
        assert self.native is not None
        nbytes = problem.count * problem.itemsize
        if problem.operation == "allreduce":
            return self.native.seconds(nbytes)
        if not predictions:
            return 0.0
        count = max(problem.count, 1)
        example = Problem("allreduce", self.topology, count=count, itemsize=problem.itemsize)
        plans = [Plan(example, find("allreduce", name)) for name in _YARDSTICKS]
        ours = min(cost(plan, speed=self.speed).seconds for plan in plans)
        return self.native.seconds(nbytes) * min(predictions.values()) / max(ours, 1e-9)

    def example(self, call: Agreed) -> Problem:
        """Return the problem that stands for all calls of a kind."""
        size = self.topology.size
        nbytes = call.nbytes
        counts: NDArray[np.int64] | None = None
        if call.operation in VECTOR:
            counts = np.full(size, nbytes, dtype=np.int64)
        elif call.operation == "alltoallv":
            counts = np.full((size, size), nbytes // 8, dtype=np.int64)
        return Problem(
            call.operation,
            self.topology,
            count=nbytes if counts is None and call.operation != "barrier" else 0,
            counts=counts,
            itemsize=1,
            commutative=call.commutative,
        )


def _anchors_around(call: Agreed) -> tuple[int, int]:
    """Give the anchors around a size class, twice the class where it is one."""
    at = call.size_class
    if call.operation in UNSIZED or at in _ANCHORS or at > _ANCHORS[-1]:
        return at, at
    above = next(index for index, anchor in enumerate(_ANCHORS) if anchor > at)
    return _ANCHORS[above - 1], _ANCHORS[above]


def _is_long(plan: Plan) -> bool:
    """Whether a middle rank has too many steps to be priced lightly."""
    if plan.size <= MANY_STEPS // 16:
        return False
    return next(islice(plan.steps(plan.size // 2), MANY_STEPS, None), None) is not None


def _listed(objections: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in objections.items()) or "none is known"
