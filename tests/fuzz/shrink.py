"""Makes the shortest sequence that still fails of one that does."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.launch import ROOT, Outcome, launch
from tests.fuzz.sequences import Sequence

#: Candidates that one launch tries, one after the other.
_BATCH = 24


class Shrinking:
    """Shrinks failures on a number of ranks.

    Parameters
    ----------
    ranks : int
        How many.
    limit_s : float
        Seconds after which it makes do with what it has.
    package : Path
        Where closeranks is imported from.
    say : callable
        Is told how it goes on.
    """

    def __init__(
        self,
        ranks: int,
        *,
        limit_s: float = 300,
        package: Path = ROOT,
        say: Callable[[str], object] = print,
    ) -> None:
        self._ranks, self._package, self._say = ranks, package, say
        self._end_s = time.monotonic() + limit_s
        self.outcome = Outcome()

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self._end_s

    def first(self, candidates: list[Sequence], tries: int = 1) -> Sequence | None:
        """Give the first candidate that fails, or None."""
        for _ in range(tries):
            left = candidates
            while left and not self._is_late:
                some = left[:_BATCH]
                job = {"sequences": some}
                outcome = launch(job, self._ranks, limit_s=60 + 10 * len(some),
                                 package=self._package)  # fmt: skip
                if outcome.what:
                    self.outcome = outcome
                    return some[outcome.index]
                left = left[len(some) :]
        return None

    def shrink(self, sequence: Sequence) -> Sequence:
        """Shrink a sequence that fails alone."""
        best = self._cut(sequence)
        changed = True
        while changed and not self._is_late:
            changed = False
            for simpler in self._halves(best), list(_simpler(best)):
                found = self.first(simpler)
                if found is not None:
                    best, changed = found, True
                    self._say(f"{len(best['steps'])} steps")
        return best

    def _cut(self, sequence: Sequence) -> Sequence:
        """Leave out what comes after the step that failed, and what is unlike it."""
        steps = sequence["steps"]
        end = min(self.outcome.step + 1, len(steps))
        last = steps[end - 1]
        alike = [step for step in steps[:end] if step.get("op") == last.get("op")]
        cuts = [[last], alike[-2:], alike, steps[max(0, end - 4) : end], steps[:end]]
        return self.first([{**sequence, "steps": cut} for cut in cuts]) or sequence

    def _halves(self, sequence: Sequence) -> list[Sequence]:
        """Leave out runs of steps, long ones first."""
        steps, found = sequence["steps"], []
        length = len(steps) // 2
        while length:
            for start in range(0, len(steps), length):
                rest = [*steps[:start], *steps[start + length :]]
                if rest:
                    found.append({**sequence, "steps": rest})
            length //= 2
        return found


#: What a field may be instead, the simplest first.
_SIMPLE: dict[str, tuple[Any, ...]] = {
    "repeat": (1, 2, 3, 40),
    "mode": ("",),
    "comm": (0,),
    "named": (False,),
    "vary": (False,),
    "skew": (None,),
    "need": (None,),
    "given": (False,),
    "place": (False,),
    "gap": (0,),
    "root": (0,),
    "reduce": ("MPI.SUM",),
    "kind": ("f8", "i8"),
    "count": (1, 2, 8, 64),
    "counts": ([1, 2],),
    "algorithm": ("auto",),
}
_SIMPLE_SIDE: dict[str, tuple[Any, ...]] = {
    "owner": ("numpy",),
    "form": ("array", "typed"),
    "shift": (0,),
    "fresh": (False,),
}


def _simpler(sequence: Sequence) -> Iterator[Sequence]:
    """Give the same steps with one thing simpler."""
    if sequence["options"]:
        yield {**sequence, "options": {}}
    for number, step in enumerate(sequence["steps"]):
        if "op" not in step:
            continue
        for field, values in _SIMPLE.items():
            yield from _with(sequence, number, None, field, values)
        for side in ("send", "recv"):
            for field, values in _SIMPLE_SIDE.items():
                yield from _with(sequence, number, side, field, values)


def _with(
    sequence: Sequence, number: int, side: str | None, field: str, values: tuple[Any, ...]
) -> Iterator[Sequence]:
    """Give the sequence with other values of one field, as long as they are simpler."""
    step = sequence["steps"][number]
    place = step if side is None else step[side]
    for value in values:
        if place.get(field, value) == value:
            return
        if field == "reduce" and place[field] is None:
            return
        made = copy.deepcopy(sequence)
        changed = made["steps"][number]
        (changed if side is None else changed[side])[field] = value
        yield made
