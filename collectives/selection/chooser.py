"""Which algorithm for which call: the same answer on every rank.

The answer follows from facts that all ranks share: the operation, the bytes of
the signature and whether operands commute, which MPI obliges all ranks to
agree on, and numbers agreed at init.  A table of rules comes first, see
`closeranks.collectives.selection.tuning_table`.  Prices come from `cost` over
the measured links.  A price is a guess, so a communicator may try: the first
calls of a kind go in turn to the cheapest plans and to the library, and the
ranks agree on the fastest one (`Trial`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.analysis.cost_model import Cost, Speed, cost
from closeranks.collectives.arguments.call_key import UNSIZED, Agreed
from closeranks.collectives.builders.catalogue import ALGORITHMS, find
from closeranks.collectives.plans.collective import OF_ONE, VECTOR, Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.selection.call_options import AMONG_DEVICES, AUTO, known_name
from closeranks.collectives.selection.trial import Trial
from closeranks.comms.topology.topology import Topology
from closeranks.errors import UsageError

UNLIMITED: Final = float("inf")
#: More rules for an operation than that are refused.
MOST: Final = 256
Ladder = tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Rules:
    """Algorithms by operation and size.

    Attributes
    ----------
    ladders : mapping of str to tuple of (float, str)
        Operation -> (largest size in bytes, algorithm), ascending.
    """

    ladders: Mapping[str, Ladder] = field(default_factory=dict)

    def name(self, operation: str, nbytes: int) -> str | None:
        """Give the algorithm for a call, or None to choose freely.

        Parameters
        ----------
        operation : str
            For instance ``"allreduce"``.
        nbytes : int
            Bytes of the vector or of one rank's block.

        Returns
        -------
        str or None
            "native" or a name of the catalogue.
        """
        for limit, name in self.ladders.get(operation, ()):
            if nbytes <= limit:
                return None if name == AUTO else name
        return None

    def divides(self, operation: str, size_class: int) -> bool:
        """Tell whether sizes of one class may have different rules.  Local."""
        least, most = 1 << size_class >> 1, (1 << size_class) - 1
        return any(least <= limit < most for limit, _ in self.ladders.get(operation, ()))

    def table(self) -> dict[str, Any]:
        """Write the rules as `read_rules` reads them."""
        return {
            operation: [
                {"algorithm": name} | ({} if limit == UNLIMITED else {"up_to_bytes": limit})
                for limit, name in ladder
            ]
            for operation, ladder in self.ladders.items()
        }


def read_rules(table: Mapping[str, object]) -> Rules:
    """Read a table of rules.

    Local.

    Parameters
    ----------
    table : mapping of str to object
        Operation -> a name, or a list of ``{"up_to_bytes": 65536, "algorithm":
        "native"}`` by ascending size, the last one perhaps without a limit.

    Returns
    -------
    Rules
        The same, checked.

    Raises
    ------
    UsageError
        With what is wrong where.
    """
    return Rules({operation: _ladder(operation, said) for operation, said in table.items()})


def _ladder(operation: str, said: object) -> Ladder:
    if isinstance(said, str):
        return ((UNLIMITED, _name(operation, said)),)
    if not isinstance(said, Sequence):
        raise UsageError("tuning", f"{operation}: {said!r:.40}", "a name, or a list of rules")
    if len(said) > MOST:
        raise UsageError("tuning", f"{operation}: {len(said)} rules", f"give at most {MOST}")
    rules: list[tuple[float, str]] = []
    for rule in said:
        if not isinstance(rule, Mapping) or set(rule) - {"up_to_bytes", "algorithm"}:
            raise UsageError("tuning", f"{operation}: a rule {rule!r:.40}",
                             'write {"up_to_bytes": 65536, "algorithm": "native"}')  # fmt: skip
        limit = rule.get("up_to_bytes", UNLIMITED)
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if not is_number or not limit >= 0:
            raise UsageError("tuning", f"{operation}: up_to_bytes {limit!r:.40}", "0 or more")
        if rules and limit <= rules[-1][0]:
            problem = f"{operation}: {limit} after {rules[-1][0]}"
            raise UsageError("tuning", problem, "give ascending limits")
        rules.append((limit, _name(operation, rule.get("algorithm"))))
    return tuple(rules)


def _name(operation: str, name: object) -> str:
    if not isinstance(name, str):
        raise UsageError("tuning", f"{operation}: algorithm {name!r:.40}", "a name")
    if name in AMONG_DEVICES:
        problem = f"{name!r} for {operation}, wherever its arrays lie"
        raise UsageError("tuning", problem, "ask for it in the calls of arrays on devices")
    return name if name == AUTO else known_name(operation, name, "tuning")


#: The library's own collective.
NATIVE = "native"
#: A kernel in the memory of one node.
SHARED = "shared"
#: Plans with more steps a rank than this are not priced where others are.
MANY_STEPS = 20_000
#: At most so many plans are tried, none predicted slower than the best by more; and,
#: where kernels in node memory do part of it, those predicted slower by no more.
MOST_TRIED, NEAR, KERNELS = 4, 1.2, 4.0
#: Rounds of a trial by the predicted time of a call: (seconds below, rounds).
ROUNDS = ((1e-3, 16), (5e-3, 8), (0.1, 4), (float("inf"), 1))
#: From so many seconds on, a call that no rank waits for is a plan: the library's own makes no
#: progress while the program computes.  A shorter one is not worth a thread.
UNATTENDED_S = 1e-3
#: All-reduces with prices that stand for ours where the library's is guessed.
_YARDSTICKS = ("recursive_doubling", "rabenseifner")


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


class Choice(NamedTuple):
    """An answer, with its reasons.

    Attributes
    ----------
    algorithm : str
        The algorithm for the next call.
    predicted_s : float
        Its predicted (or agreed measured) time, seconds.
    predictions : dict of str to float
        Predicted seconds of every candidate.
    objections : dict of str to str
        Why the others are no candidates.
    trial : Trial or None
        Measured times, where calls are tried.
    """

    algorithm: str
    predicted_s: float
    predictions: dict[str, float]
    objections: dict[str, str]
    trial: Trial | None

    def seconds(self, name: str) -> float:
        """Give the agreed time of an algorithm, else the predicted one, or infinity."""
        agreed_s = self.trial.agreed_s if self.trial is not None else {}
        return agreed_s.get(name, self.predictions.get(name, math.inf))


class Chooser:
    """Chooses for one communicator; every rank's gives the same answers.

    Parameters
    ----------
    topology : Topology
        Links measured and agreed, or made up.
    native : NativeModel, optional
        The library's agreed times; without it "native" is tried, not priced.
    speed : Speed, optional
        Costs beside the wire, agreed.
    trials : bool
        Whether the first calls of a kind may be used to measure.
    allow_native : bool
        False for ``deterministic`` communicators.
    native_bytes : int, optional
        The library's collectives serve calls of up to so many bytes in all,
        see `closeranks.comms.mpi.ulfm.BRIEF_BYTES`.
    forced : mapping of str to str, optional
        Operation -> algorithm, for any price.
    winners : Rules, optional
        The fastest algorithms of earlier trials; these are not tried again.
    heritage : mapping of Agreed to str, optional
        The algorithm of the first blocking call of a kind, before any is priced or
        tried; the same on all ranks.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        native: NativeModel | None = None,
        speed: Speed | None = None,
        trials: bool = False,
        allow_native: bool = True,
        native_bytes: int | None = None,
        forced: Mapping[str, str] | None = None,
        winners: Rules | None = None,
        heritage: Mapping[Agreed, str] | None = None,
    ) -> None:
        self.topology, self.native = topology, native
        self.speed = speed or Speed()
        self.trials, self.allow_native = trials, allow_native
        self.native_bytes = native_bytes
        self.forced = dict(forced or {})
        self.winners = winners or Rules()
        self._choices: dict[Agreed, Choice] = {}
        self._heritage = dict(heritage or {})
        self._fresh = set(self._heritage)

    @property
    def numbers(self) -> dict[str, Any]:
        """Numbers by which a chooser of other ranks chooses alike, without trials."""
        return {
            "native": self.native,
            "speed": self.speed,
            "trials": self.trials,
            "allow_native": self.allow_native,
            "native_bytes": self.native_bytes,
            "winners": self.winners,
        }

    @property
    def best_known(self) -> dict[Agreed, str]:
        """The winner of each trial that is over, else the inherited or predicted one."""
        found = dict(self._heritage)
        for call, choice in self._choices.items():
            is_over = choice.trial is None or choice.trial.winner is not None
            if is_over or call not in found:  # what others have measured before goes first
                found[call] = self.settled(call).algorithm
        return found

    def is_lasting(self, call: Agreed) -> bool:
        """Tell whether all calls of this size go where this one went, for any op.

        Not where one was inherited: the next may be tried.  Nor where operands may
        not change places: sizes are known without looking at the op.
        """
        call = call.choice
        return call.commutative and (call not in self._heritage or call in self._choices)

    def choose(self, call: Agreed) -> Choice:
        """Return the algorithm for the next call of a kind, which may be a trial."""
        call = call.choice
        if call in self._fresh:
            self._fresh.remove(call)
            inherited = self._heritage[call]
            if self._takes(call, inherited):
                return Choice(inherited, 0.0, {}, {}, None)
        found = self._settled(call)
        if found.trial is not None and found.trial.winner not in (None, NATIVE, SHARED):
            found.trial.serve()  # those two go ways that nobody counts alike on all ranks
            found = self._settled(call)
        if found.trial is None or found.trial.winner is not None:
            return found
        return Choice(found.trial.turn, *found[1:])

    def _takes(self, call: Agreed, name: str) -> bool:
        """Tell whether the fastest algorithm of other ranks can serve a call here."""
        if name == NATIVE:
            return self._objection(call) is None
        return find(call.operation, name).objection(self.example(call)) is None

    def settled(self, call: Agreed) -> Choice:
        """Return the agreed fastest, or the best prediction as long as there is none."""
        return self._settled(call.choice)

    def _settled(self, call: Agreed) -> Choice:
        known = self._choices.get(call)
        if known is None:
            known = self._choices[call] = self._consider(call)
        trial = known.trial
        if trial is None or trial.winner is None:
            return known
        return known._replace(algorithm=trial.winner, predicted_s=trial.agreed_s[trial.winner])

    @staticmethod
    def unattended(choice: Choice, *, persistent: bool = False) -> str:
        """Name the algorithm of a call without a waiting rank, see `UNATTENDED_S`.

        Parameters
        ----------
        choice : Choice
            For a blocking call of that kind.
        persistent : bool
            Whether a start may begin a kernel, which takes no thread.

        Returns
        -------
        str
            The fastest plan if the library's would stand still for long, else the
            library's if it can.
        """
        trial = choice.trial
        times = (trial and trial.agreed_s) or choice.predictions
        name = choice.algorithm
        if trial is not None:
            name = trial.winner or min(times, key=lambda one: times[one])
        plans = {one: seconds for one, seconds in times.items() if one != NATIVE}
        if not plans or NATIVE not in times or (persistent and name == SHARED):
            return name
        best = min(plans, key=lambda one: plans[one])
        return best if plans[best] >= UNATTENDED_S else NATIVE

    def cheapest(self, problem: Problem) -> str:
        """Name of the cheapest plan for exactly this problem, native left aside."""
        prices, objections = self._prices(problem)
        if not prices:
            raise UsageError(problem.operation, "no algorithm applies", _listed(objections))
        return min(prices, key=lambda name: prices[name].seconds)

    def _consider(self, call: Agreed) -> Choice:
        problem = self.example(call)
        if call.operation in self.forced:
            return Choice(self.forced[call.operation], 0.0, {}, {}, None)
        prices, objections = self._prices(problem)
        predictions = {name: price.seconds for name, price in prices.items()}
        objection = self._objection(call)
        native = objection is None
        if objection is not None:
            objections[NATIVE] = objection
        elif self.native is not None:
            predictions[NATIVE] = self._native_s(problem, predictions)
        if not predictions:
            if call.native and self.allow_native:
                return Choice(NATIVE, 0.0, {}, objections, None)
            raise UsageError(call.operation, "no algorithm applies", _listed(objections))
        known = self.winners.name(call.operation, call.nbytes)
        if known is not None and (known in predictions or (known == NATIVE and native)):
            return Choice(known, predictions.get(known, 0.0), predictions, objections, None)
        best = min(predictions, key=lambda name: predictions[name])
        may_try = self.trials and call.native
        trial = self._trial(problem, predictions, native=native) if may_try else None
        if native and self.native is None and trial is None:
            best = NATIVE
        return Choice(best, predictions.get(best, 0.0), predictions, objections, trial)

    def _objection(self, call: Agreed) -> str | None:
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

    def _trial(
        self, problem: Problem, predictions: Mapping[str, float], *, native: bool
    ) -> Trial | None:
        """Try the cheapest plans that are near each other, kernels, and the library."""
        plans = sorted((n for n in predictions if n != NATIVE), key=lambda n: predictions[n])
        if not plans:
            return None
        least = predictions[plans[0]]
        tried = [
            name
            for name in plans
            if find(problem.operation, name).kernels
            and (name == SHARED or predictions[name] <= KERNELS * least)
        ]
        tried += [
            name
            for name in plans[:MOST_TRIED]
            if predictions[name] <= NEAR * least and name not in tried
        ]
        if len(tried) + native < 2:
            return None
        candidates = (*tried, NATIVE) if native else (*tried[1:], tried[0])
        rounds = next(rounds for limit_s, rounds in ROUNDS if least < limit_s)
        return Trial(candidates, rounds=rounds)

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


def _is_long(plan: Plan) -> bool:
    """Whether a middle rank has too many steps to be priced lightly."""
    if plan.size <= MANY_STEPS // 16:
        return False
    return next(islice(plan.steps(plan.size // 2), MANY_STEPS, None), None) is not None


def _listed(objections: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in objections.items()) or "none is known"
