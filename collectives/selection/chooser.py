"""Which algorithm for which call: the same answer on every rank.

The answer follows from facts that all ranks share: the operation, the bytes of
the signature and whether operands commute, which MPI obliges all ranks to
agree on, numbers agreed at init, and how many calls were made.  A table of
rules comes first, see `closeranks.collectives.selection.rules`; then what was
found before, see `closeranks.collectives.selection.findings`.

An answer holds for a number of calls, which is counted in `calls_left`.  Then
the chooser looks again.  The first calls of a kind go to the library, or to a
kernel in node memory that was timed beside it and was faster, as long as that
costs less than to think.  Then a kernel that is clearly faster or slower than
the library needs no trial.  Else the algorithms are priced.  If the budget
allows it, the next calls go in turn to the cheapest plans and to the library,
and the ranks agree on the fastest one (`Trial`).  If it does not, the answer
is what was found for similar sizes, or the cheapest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.analysis.cost_model import Speed
from closeranks.collectives.arguments.call_key import CLASSES, UNSIZED, Agreed
from closeranks.collectives.builders.catalogue import ALGORITHMS, find
from closeranks.collectives.plans.collective import OF_ONE, Problem
from closeranks.collectives.selection.call_options import NATIVE, SHARED
from closeranks.collectives.selection.candidates import first_race, later_race
from closeranks.collectives.selection.choice import UNATTENDED_S, Choice
from closeranks.collectives.selection.findings import (
    CallKind,
    TrialBudget,
    TrialFinding,
    TrialFindings,
)
from closeranks.collectives.selection.pricing import KernelShares, NativeModel, Pricing
from closeranks.collectives.selection.rules import Rules
from closeranks.collectives.selection.trial import CLOSE, Trial
from closeranks.comms.topology.topology import Topology

#: An answer holds for so many calls, the one after it for ten times as many, and so on: the
#: machine may have changed.  And one that is never looked at again.
AGAIN, ENDLESS = 100, 1 << 62
#: What a call costs beside itself while it is tried, and what it takes to price a kind of
#: call for each rank and to open a world, in steps of Python (`Speed.step_s`).
_TRIED_STEPS, _PRICED_STEPS, _OPENED_STEPS = 16, 250, 500
#: Pricing takes no longer where there are more ranks than that.
_MOST_PRICED: Final = 64
#: What it takes to measure the kernels of an operation, in the same steps; and where one takes
#: less than that share of the library's time, or the library of its, there is no race.
_MEASURED_STEPS, _SURE = 800, 0.8
#: An answer may be what was found so many size classes away.
_SIMILAR: Final = 3


@dataclass(slots=True)
class Answer:
    """What holds for the calls of a kind.

    Attributes
    ----------
    choice : Choice
        For the next of them.
    left : ndarray of int64
        Numbers of calls for which answers hold, by size class.
    span : int
        Calls for which this one was given.
    served : int
        Calls before these.
    """

    choice: Choice
    left: NDArray[np.int64]
    span: int = 0
    served: int = 0


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
        Whether calls may be used to measure.
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
    findings : TrialFindings, optional
        What the ranks agree was found on this shape; copied.
    is_open : bool
        Whether the world is open: else plans and kernels wait until they are worth
        that.
    pricing : Pricing, optional
        Of the same topology and numbers, made before.
    kernels : dict of str to KernelShares, optional
        As for `Pricing`.

    Attributes
    ----------
    findings : TrialFindings
        With what this chooser has found.
    is_open : bool
        As given; set where the world is opened later.
    measure : callable
        Measures the kernels of an operation, see
        `closeranks.collectives.dispatch.kernel_speed.measure`; collective.
    has_looked : bool
        Whether calls in an open world went on beyond their first answer: compiled
        code is worth having now.
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
        findings: TrialFindings | None = None,
        is_open: bool = True,
        pricing: Pricing | None = None,
        kernels: dict[str, KernelShares] | None = None,
    ) -> None:
        self.topology, self.trials = topology, trials
        self.pricing = pricing or Pricing(
            topology, native=native, speed=speed or Speed(),
            allow_native=allow_native, native_bytes=native_bytes, kernels=kernels,
        )  # fmt: skip
        self.forced = dict(forced or {})
        self.winners = winners or Rules()
        self.findings = findings.copy() if findings else TrialFindings()
        self.is_open = is_open
        self._store, self._told = findings, replace(self.findings.budget)
        self._answers: dict[Agreed, Answer] = {}
        self._left: dict[tuple[str, bool, bool], NDArray[np.int64]] = {}
        self._heritage = dict(heritage or {})
        self._measured = set(self.pricing.kernels)
        self._is_lazy, self.has_looked = True, False
        self.measure: Callable[[str], KernelShares | None] = lambda _: None

    @property
    def numbers(self) -> dict[str, Any]:
        """Numbers by which a chooser of other ranks chooses alike, without trials."""
        return {
            "native": self.pricing.native,
            "speed": self.pricing.speed,
            "trials": self.trials,
            "allow_native": self.pricing.allow_native,
            "native_bytes": self.pricing.native_bytes,
            "winners": self.winners,
            "kernels": dict(self.pricing.kernels),
        }

    @property
    def best_known(self) -> dict[Agreed, str]:
        """What was found for each kind, else what holds for it."""
        found = dict(self._heritage)
        for call, answer in self._answers.items():
            choice = answer.choice
            if choice.source == "predicted" and not choice.predictions:
                continue  # the first calls, which nobody has looked at
            if not choice.is_tried or call not in found:  # what others have measured goes first
                found[call] = choice.algorithm
        return found

    def calls_left(self, operation: str) -> NDArray[np.int64]:
        """Give the numbers of calls for which answers hold, by size class.

        Who serves a call without asking counts it down, and asks if none is left.

        Parameters
        ----------
        operation : str
            For instance ``"allreduce"``; of calls that commute and that the library
            can do.

        Returns
        -------
        ndarray of int64, shape (`CLASSES`,)
            The same array each time.
        """
        return self._calls_left(Agreed(operation, 0))

    def _calls_left(self, call: Agreed) -> NDArray[np.int64]:
        key = call.operation, call.commutative, call.native
        left = self._left.get(key)
        if left is None:
            left = self._left[key] = np.zeros(CLASSES, np.int64)
        return left

    def library_classes(self, call: Agreed) -> list[int]:
        """List the size classes of an operation that are the library's for now.  Local."""
        left = self.calls_left(call.operation)
        alike = call.choice
        found = [call.size_class]
        for at in np.flatnonzero(left).tolist():
            answer = self._answers.get(alike._replace(size_class=at))
            if answer is not None and answer.choice.algorithm == NATIVE:
                found.append(at)
        return found

    def scaled(self, call: Agreed, nbytes: int, seconds: float) -> float:
        """Turn the time of a call into that of one of its kind's typical size.  Local."""
        typical_s, own_s = (self.pricing.library_s(size) for size in (call.nbytes, nbytes))
        return seconds * typical_s / own_s if nbytes and own_s > 0.0 else seconds

    def is_brief(self, call: Agreed) -> bool:
        """Tell whether the library surely takes less than `UNATTENDED_S`.  Local."""
        if self.topology.size == 1:
            return True
        if call.operation in UNSIZED or self.pricing.native is None:
            return False
        blocks = 1 if call.operation in OF_ONE else self.topology.size
        return self.pricing.library_s(2 * call.nbytes * blocks) < UNATTENDED_S / 8

    def allows(self, call: Agreed) -> bool:
        """Tell whether the library may serve a kind of call.  Local."""
        return self.pricing.objection(call) is None

    def count(self, call: Agreed) -> None:
        """Count a call that goes where its size class goes, whatever its op is.  Local."""
        left = self.calls_left(call.operation)
        if left[call.size_class] > 0:
            left[call.size_class] -= 1

    def choose(self, call: Agreed) -> Choice:
        """Return the algorithm for the next call of a kind, which may be a trial."""
        call = call.choice
        answer = self._answers.get(call)
        if answer is None:
            answer = self._first_answer(call)
        if not answer.choice.is_tried and answer.left[call.size_class] == 0:
            self._look_again(call, answer)
        choice = answer.choice
        if choice.is_tried:
            assert choice.trial is not None
            return choice._replace(algorithm=choice.trial.turn)
        answer.left[call.size_class] -= 1
        return choice

    def settled(self, call: Agreed) -> Choice:
        """Return what holds now, priced, for who makes no blocking call.  Local."""
        call = call.choice
        answer = self._answers.get(call)
        choice = None if answer is None else answer.choice
        if choice is not None and choice.predictions:
            return choice
        priced = self._priced(call)
        if choice is None:
            choice = self._known(call)
        if choice is None and self._free_calls(call):
            choice = self._unpriced(call)
        if choice is None:
            name, seconds, source = self._best_guess(call, priced)
            return priced._replace(algorithm=name, predicted_s=seconds, source=source)
        return choice._replace(predictions=priced.predictions, objections=priced.objections)

    def calls_to_settle(self, call: Agreed) -> int:
        """Count the blocking calls of the race that is on, or begins next.  Local."""
        call = call.choice
        answer = self._answers.get(call)
        if answer is not None and answer.choice.trial is not None and answer.choice.is_tried:
            return answer.choice.trial.calls_left
        if answer is None:
            if self._known(call) is not None or self._free_calls(call):
                return 0
            answer = Answer(self._priced(call), self._calls_left(call))
        if answer.left[call.size_class]:
            return 0
        choice = answer.choice if answer.choice.predictions else self._priced(call)
        trial = self._next_trial(call, Answer(choice, answer.left))
        return self._calls_of(trial) if trial and self._affords(choice, trial) else 0

    @staticmethod
    def _calls_of(trial: Trial) -> int:
        """Count the calls of the race that a trial would begin with."""
        names = trial.candidates if trial.winner is None else trial.rivals
        return trial.rounds * len(names)

    def hasten(self, call: Agreed) -> int:
        """Look at a kind of call now; gives `calls_to_settle`.  On all ranks."""
        call = call.choice
        answer = self._answers.get(call)
        if answer is None:
            answer = self._first_answer(call)
        left = answer.left[call.size_class]
        if answer.choice.is_tried or answer.choice.trial is not None or answer.span == ENDLESS:
            return self.calls_to_settle(call)
        answer.served += answer.span - int(left)
        self.findings.budget.called_s += (answer.span - int(left)) * answer.choice.predicted_s
        self._hold(call, answer, 0)
        calls = self.calls_to_settle(call)
        if not calls:
            self._look_again(call, answer)
        return calls

    def try_all(self) -> None:
        """Try every kind of call before all else, whatever that costs.  On all ranks."""
        self.findings = TrialFindings(budget=TrialBudget(called_s=math.inf))
        self.is_open, self._is_lazy = True, False

    def conclude(self, call: Agreed, agreed_s: list[float]) -> bool:
        """Take the agreed times of a race; gives whether there is a winner.

        Called on all ranks with the same times.

        Parameters
        ----------
        call : Agreed
            Of the calls that were tried.
        agreed_s : list of float
            Seconds of each of them, that of the slowest rank.
        """
        call = call.choice
        answer = self._answers[call]
        choice, budget = answer.choice, self.findings.budget
        trial = choice.trial
        assert trial is not None
        budget.tried_s -= self._race_s(choice, trial, beside=False)
        again = trial.settle(agreed_s)
        best_s = min(trial.agreed_s.values())
        budget.tried_s += sum(max(0.0, seconds - best_s) for seconds in agreed_s)
        if again is None:
            if budget.allows(self._race_s(choice, trial)):
                budget.tried_s += self._race_s(choice, trial)
                return False
            again = trial.decide()
        seconds = trial.agreed_s[again]
        answer.choice = choice._replace(algorithm=again, predicted_s=seconds, source="tried")
        answer.served, answer.span = answer.served + len(agreed_s), AGAIN * 10**trial.looks
        answer.left[call.size_class] = answer.span
        if call.native:
            kind = CallKind(call.operation, call.size_class, call.commutative)
            found = TrialFinding(again, seconds, trial.agreed_s.get(NATIVE, math.inf))
            self.findings.by_kind[kind] = found
            if self._store is not None:
                self._store.by_kind[kind] = found
        self._tell_budget()
        return True

    def close(self) -> None:
        """Note how much was called since the last look.  Local."""
        for call, answer in self._answers.items():
            if 0 < answer.span < ENDLESS and not answer.choice.is_tried:
                made = answer.span - int(answer.left[call.size_class])
                self.findings.budget.called_s += made * answer.choice.predicted_s
                answer.span = 0  # so that nothing is counted twice
        self._tell_budget()

    def _tell_budget(self) -> None:
        """Add what was used since the last time to what the rank keeps."""
        now, before = self.findings.budget, self._told
        if self._store is not None and math.isfinite(now.called_s):
            self._store.budget.called_s += now.called_s - before.called_s
            self._store.budget.tried_s += now.tried_s - before.tried_s
        self._told = replace(now)

    def _first_answer(self, call: Agreed) -> Answer:
        """Answer a kind of call for the first time."""
        answer = self._answers[call] = Answer(self._unpriced(call), self._calls_left(call))
        free, known = self._free_calls(call), self._known(call)
        if known is not None:
            answer.choice = known
            self._hold(call, answer, AGAIN if known.predicted_s else max(1, free))
        elif free:
            self._hold(call, answer, free)
            self._answer_others(call)
        return answer

    def _answer_others(self, call: Agreed) -> None:
        """Answer other sizes of an operation whose first calls are the library's.

        Now, while all ranks are at this call: so that machine code may serve them.
        """
        if not (call.commutative and call.native):
            return
        left = self._calls_left(call)
        for at in range(CLASSES):
            other = call._replace(size_class=at)
            if other not in self._answers and self._known(other) is None:
                free = self._free_calls(other)
                if not free:
                    return  # nor have larger ones
                answer = self._answers[other] = Answer(self._unpriced(other), left)
                self._hold(other, answer, free)

    def _known(self, call: Agreed) -> Choice | None:
        """Give where others have sent the first calls of a kind, if these can go there."""
        if call.operation in self.forced or self.winners.name(call.operation, call.nbytes):
            return None
        found = self._found(call)
        if found is not None and self._is_sure(call):
            found = None  # what was timed in this job goes first
        is_due = found is not None and (self.is_open or found.algorithm == NATIVE)
        if found is not None and is_due and self._takes(call, found.algorithm):
            source = "remembered" if found.is_remembered else "tried"
            return Choice(found.algorithm, found.seconds, {}, {}, None, source)
        inherited = self._heritage.get(call)
        if inherited is not None and self._takes(call, inherited):
            return Choice(inherited, 0.0, {}, {}, None, "remembered")
        return None

    def _found(self, call: Agreed) -> TrialFinding | None:
        kind = CallKind(call.operation, call.size_class, call.commutative)
        return self.findings.by_kind.get(kind) if call.native else None

    def _unpriced(self, call: Agreed) -> Choice:
        """Give the library's own, or a kernel in node memory if that was found faster."""
        seconds, share = self.pricing.library_s(call.nbytes), self.pricing.kernel_share(call)
        if self.winners.name(call.operation, call.nbytes) == NATIVE:
            return Choice(NATIVE, seconds, {}, {}, None, "table")
        if share is not None and share < 1.0 and self.is_open and self._has_kernel(call):
            return Choice(SHARED, share * seconds, {}, {}, None)
        return Choice(NATIVE, seconds, {}, {}, None)

    def _has_kernel(self, call: Agreed) -> bool:
        """Tell whether a kernel in node memory may serve a kind of call."""
        found = (one for one in ALGORITHMS.get(call.operation, ()) if one.name == SHARED)
        return any(one.objection(self.example(call)) is None for one in found)

    def _free_calls(self, call: Agreed) -> int:
        """Count the first calls of a kind that are served unpriced.

        They take as long as it takes to price it; one rank has nothing to price.
        """
        pricing = self.pricing
        known = self.winners.name(call.operation, call.nbytes)
        if call.operation in self.forced or known not in (None, NATIVE):
            return 0
        if pricing.objection(call) is not None:
            return 0
        if self.topology.size == 1 or known == NATIVE:
            return ENDLESS
        if pricing.native is None or not (self.trials and self._is_lazy):
            return 0
        steps = _PRICED_STEPS * min(self.topology.size, _MOST_PRICED)
        spent_s = pricing.speed.step_s * (steps + (0 if self.is_open else _OPENED_STEPS))
        return min(AGAIN, int(spent_s / max(pricing.library_s(call.nbytes), 1e-9)))

    def _takes(self, call: Agreed, name: str) -> bool:
        """Tell whether the fastest algorithm of other ranks can serve a call here."""
        if name == NATIVE:
            return self.pricing.objection(call) is None
        return find(call.operation, name).objection(self.example(call)) is None

    def _hold(self, call: Agreed, answer: Answer, calls: int) -> None:
        """Let an answer hold for a number of calls."""
        answer.span = answer.left[call.size_class] = calls

    def _look_again(self, call: Agreed, answer: Answer) -> None:
        """Begin a race, or say what holds for the next calls."""
        budget, choice = self.findings.budget, answer.choice
        if 0 < answer.span < ENDLESS:
            answer.served += answer.span
            budget.called_s += answer.span * choice.predicted_s
        self.has_looked |= self.is_open and self.trials
        is_measured = self._may_measure(call)
        if is_measured:
            budget.tried_s += _MEASURED_STEPS * self.pricing.speed.step_s
            self.note_kernels(call.operation, self.measure(call.operation))
        is_usual = choice.source == "predicted" and self.pricing.objection(call) is None
        if self.is_open and is_usual and self._is_sure(call):
            answer.choice = self._unpriced(call)  # priced when somebody asks
            self._hold(call, answer, ENDLESS)
            return
        if is_measured or not choice.predictions:
            answer.choice = choice = self._priced(call)
        trial = self._next_trial(call, answer)
        if trial is None:
            best = self._due(call, answer)
            self._hold(call, answer, ENDLESS if best else 2 * max(answer.span, AGAIN))
        elif self._affords(choice, trial):
            budget.tried_s += self._race_s(choice, trial)
            self._begin(answer, trial)
        else:
            self._due(call, answer)
            self._hold(call, answer, 2 * max(answer.span, AGAIN))

    def _may_measure(self, call: Agreed) -> bool:
        """Tell whether the kernels of an operation are to be measured now."""
        is_due = self.trials and self.is_open and self._is_lazy
        if not (is_due and call.native and self._has_kernel(call)):
            return False
        steps_s = _MEASURED_STEPS * self.pricing.speed.step_s
        return call.operation not in self._measured and self.findings.budget.allows(steps_s)

    def note_kernels(self, operation: str, shares: KernelShares | None) -> None:
        """Note how fast kernels are, or that it cannot be told.  On all ranks."""
        self._measured.add(operation)
        if shares is not None:
            self.pricing.note_kernels(operation, shares)

    @staticmethod
    def _begin(answer: Answer, trial: Trial) -> None:
        """Try the next calls."""
        if trial.winner is not None:
            trial.meet_again()
        answer.choice = answer.choice._replace(trial=trial)

    def _next_trial(self, call: Agreed, answer: Answer) -> Trial | None:
        """Give the race that may come next, None where none would change the answer."""
        choice = answer.choice
        if not self.trials or not call.native or choice.source in ("forced", "table"):
            return None
        if choice.trial is not None:
            return choice.trial if choice.trial.rivals else None
        if self._is_sure(call):
            return None
        known, native = self._found(call), self.pricing.objection(call) is None
        if known is None:
            return first_race(call.operation, choice.predictions, allows_native=native)
        return later_race(call.operation, choice.predictions, known, allows_native=native)

    def _affords(self, choice: Choice, trial: Trial) -> bool:
        """Tell whether the budget allows a race."""
        return self.findings.budget.allows(self._race_s(choice, trial))

    def _race_s(self, choice: Choice, trial: Trial, *, beside: bool = True) -> float:
        """Predict what a race costs: its calls beyond the answer's, and what is beside."""
        names = trial.candidates if trial.winner is None else trial.rivals
        known = [choice.seconds(name) for name in names]
        longest = max((one for one in known if one < math.inf), default=0.0)
        least = min(choice.predicted_s, longest)
        calls_s = trial.rounds * sum(max(0.0, min(one, longest) - least) for one in known)
        if not beside:
            return calls_s
        steps = _TRIED_STEPS * trial.rounds * len(names) + (0 if self.is_open else _OPENED_STEPS)
        return calls_s + steps * self.pricing.speed.step_s

    def _due(self, call: Agreed, answer: Answer) -> bool:
        """Choose what is best by all that is known; False where the world waits for it.

        To open the world takes time, so a communicator keeps to the library until it
        has lost as much by that.
        """
        choice = answer.choice
        if choice.trial is not None or choice.source in ("forced", "table"):
            return True
        name, seconds, source = self._best_guess(call, self._priced(call))
        is_due = True
        if not self.is_open and name != NATIVE and self.pricing.objection(call) is None:
            loss_s = max(choice.seconds(NATIVE) - seconds, 0.0)
            is_due = answer.served * loss_s >= _OPENED_STEPS * self.pricing.speed.step_s
        if not is_due:
            name, seconds, source = NATIVE, choice.seconds(NATIVE), "predicted"
        if not math.isfinite(seconds):
            seconds = 0.0
        answer.choice = choice._replace(algorithm=name, predicted_s=seconds, source=source)
        return is_due

    def _is_sure(self, call: Agreed) -> bool:
        """Tell whether a kernel was found clearly faster than the library, or slower."""
        known = self.pricing.kernels.get(call.operation)
        if known is None or not (self._is_lazy and self._has_kernel(call)):
            return False
        if call.operation in self.forced or self.winners.name(call.operation, call.nbytes):
            return False
        share = known.share(call.nbytes)
        return share < _SURE or share > 1 / _SURE

    def _best_guess(self, call: Agreed, choice: Choice) -> tuple[str, float, str]:
        """Give what was found for this size or a similar one, else the cheapest."""
        looks = call.native and not self._is_sure(call)
        for distance in range(_SIMILAR + 1 if looks else 0):
            for at in {call.size_class - distance, call.size_class + distance}:
                kind = CallKind(call.operation, at, call.commutative)
                found = self.findings.by_kind.get(kind)
                if found is None or found.algorithm not in choice.predictions:
                    continue
                if distance:
                    return found.algorithm, choice.seconds(found.algorithm), "predicted"
                source = "remembered" if found.is_remembered else "tried"
                return found.algorithm, found.seconds, source
        return choice.algorithm, choice.predicted_s, choice.source

    def cheapest(self, problem: Problem) -> str:
        """Name of the cheapest plan for exactly this problem, native left aside."""
        return self.pricing.cheapest(problem)

    def example(self, call: Agreed) -> Problem:
        """Return the problem that stands for all calls of a kind."""
        return self.pricing.example(call)

    def _priced(self, call: Agreed) -> Choice:
        """Choose by rules and prices alone."""
        if call.operation in self.forced:
            return Choice(self.forced[call.operation], 0.0, {}, {}, None, "forced")
        predictions, objections, native = self.pricing.estimates(call)
        if not predictions:
            return Choice(NATIVE, 0.0, {}, objections, None)
        known = self.winners.name(call.operation, call.nbytes)
        if known is not None and (known in predictions or (known == NATIVE and native)):
            known_s = predictions.get(known, 0.0)
            return Choice(known, known_s, predictions, objections, None, "table")
        best = self._cheapest_of(predictions)
        if (
            native
            and self.pricing.native is None
            and first_race(call.operation, predictions, allows_native=native) is None
        ):
            best = NATIVE
        return Choice(best, predictions.get(best, 0.0), predictions, objections, None)

    def _cheapest_of(self, predictions: Mapping[str, float]) -> str:
        """Give what is used untried: the library, unless another is clearly cheaper.

        Kernels in node memory were timed beside the library, so their price is sure.
        """
        best = min(predictions, key=lambda name: predictions[name])
        native_s = predictions.get(NATIVE)
        if native_s is None or best == NATIVE:
            return best
        if self.pricing.kernels and SHARED in predictions:
            return min((SHARED, NATIVE), key=lambda name: predictions[name])
        return best if predictions[best] < CLOSE * native_s else NATIVE
