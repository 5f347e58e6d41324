"""Why this algorithm?  The choice, its price and the other candidates, printable."""

from __future__ import annotations

from dataclasses import dataclass

from closeranks.collectives.analysis.cost_model import cost
from closeranks.collectives.arguments.call_key import Agreed
from closeranks.collectives.builders.catalogue import algorithms, find
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.selection.call_options import NATIVE, SHARED
from closeranks.collectives.selection.chooser import Chooser
from closeranks.comms.buffers.half_as_float import HALVES


@dataclass(frozen=True)
class Candidate:
    """One algorithm in an explanation.

    Attributes
    ----------
    predicted_s : float or None
        Predicted time, seconds; None where there is no model.
    measured_s : float or None
        Time the ranks agreed on after trying it, seconds.
    objection : str or None
        Why it is no candidate.
    """

    predicted_s: float | None = None
    measured_s: float | None = None
    objection: str | None = None


@dataclass(frozen=True)
class Explanation:
    """The algorithm of a call, and the reasons.

    Attributes
    ----------
    operation : str
        For instance ``allreduce``.
    nbytes : int
        Bytes of the vector or of one rank's block.
    algorithm : str
        The algorithm of the next call.
    predicted_s : float
        Its predicted time in seconds, measured where the ranks have tried it.
    bytes_per_level : dict of str to int
        Level name -> bytes the busiest rank sends; empty for "native".
    candidates : dict of str to Candidate
        Every algorithm of the operation.
    source : str
        Why it is this one: "forced" by the program or its table of rules, "table"
        of `closeranks tune`, "remembered" from an earlier job, "tried" by calls of
        this job, or "predicted" by prices and timed kernels.
    calls_to_settle : int
        Blocking calls of this kind until the race is over that is on, or that the
        next call begins; 0 where there is none.
    dtype : str
        The element, by NumPy's name; "" where nothing is reduced.
    wire : str
        The type in which sums and products of it travel; "" for its own.
    device : str
        Which way arrays on devices go; "" where there are no devices.
    """

    operation: str
    nbytes: int
    algorithm: str
    predicted_s: float
    bytes_per_level: dict[str, int]
    candidates: dict[str, Candidate]
    source: str = "predicted"
    calls_to_settle: int = 0
    dtype: str = ""
    wire: str = ""
    device: str = ""

    @property
    def rounding(self) -> str:
        """Where half-precision results are rounded; "" for other types."""
        if self.dtype not in HALVES:
            return ""
        if self.wire:
            return f"{self.dtype}: sums and products travel in {self.wire}, rounded once at the end"
        if self.algorithm == NATIVE:
            return f"{self.dtype}: rounded as the MPI library does"
        if self.algorithm == SHARED:
            return f"{self.dtype}: sums and products in float32, rounded once"
        return f"{self.dtype}: rounded after every operation, from float32"

    def __str__(self) -> str:
        """Print a small table, the cheapest first."""
        lines = [f"{self.operation} of {self.nbytes} B: {self.algorithm} ({self.source})"]
        if self.calls_to_settle:
            lines[0] += f", on trial for {self.calls_to_settle} more calls"
        if self.bytes_per_level:
            sent = ", ".join(f"{level} {n} B" for level, n in self.bytes_per_level.items())
            lines.append(f"  the busiest rank sends: {sent}")
        if self.rounding:
            lines.append(f"  {self.rounding}")
        if self.device:
            lines.append(f"  arrays on devices: {self.device}")
        order = sorted(self.candidates, key=self._rank)
        width = max((len(name) for name in order), default=0)
        lines += [f"  {name:<{width}}  {_words(self.candidates[name])}" for name in order]
        return "\n".join(lines)

    def _rank(self, name: str) -> float:
        candidate = self.candidates[name]
        if candidate.objection:
            return float("inf")
        known = candidate.measured_s or candidate.predicted_s
        return float("inf") if known is None else known


def explain(
    chooser: Chooser, call: Agreed, nbytes: int, dtype: str = "", *, forced: str | None = None
) -> Explanation:
    """Explain a chooser's answer; local.

    Parameters
    ----------
    chooser : Chooser
        The chooser that answers.
    call : Agreed
        The kind of call.
    nbytes : int
        Size of the call for which bytes over each level are counted.
    dtype : str
        The element, where there is a reduction.
    forced : str, optional
        An algorithm that was asked for, in place of the chooser's.
    """
    choice = chooser.settled(call)
    algorithm = forced or choice.algorithm
    measured = choice.trial.agreed_s if choice.trial else {}
    candidates = {
        name: Candidate(choice.predictions.get(name), measured.get(name))
        for name in {**choice.predictions, **measured}
    }
    candidates |= {name: Candidate(objection=why) for name, why in choice.objections.items()}
    if NATIVE not in candidates:
        candidates[NATIVE] = Candidate()
    levels: dict[str, int] = {}
    if algorithm in algorithms(call.operation) and algorithm not in choice.objections:
        plan = Plan(chooser.example(call), find(call.operation, algorithm))
        sized = plan.problem.counts is None and call.operation != "barrier"
        levels = cost(plan, nbytes if sized else None).bytes_per_level
    left = 0 if forced else chooser.calls_to_settle(call)
    one = candidates.get(algorithm, Candidate())
    return Explanation(
        call.operation,
        nbytes,
        algorithm,
        one.measured_s or one.predicted_s or choice.predicted_s,
        levels,
        candidates,
        "forced" if forced else choice.source,
        left,
        dtype,
    )


def _words(candidate: Candidate) -> str:
    if candidate.objection:
        return f"no: {candidate.objection}"
    words = []
    if candidate.predicted_s is not None:
        words.append(f"predicted {candidate.predicted_s * 1e6:.1f} us")
    if candidate.measured_s is not None:
        words.append(f"measured {candidate.measured_s * 1e6:.1f} us")
    return ", ".join(words) or "not priced"
