"""What must come back: known from what ranks were told, and from what was done to files.

It decodes nothing, and so judges those who do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from closeranks.checkpoint import PerRank, Shard
from closeranks.checkpoint.disk.saved_files import SavedFile
from closeranks.checkpoint.memory import slot_set
from closeranks.checkpoint.placement.slot_header import WRITING, Header
from closeranks.checkpoint.restore.generation_choice import Save
from closeranks.checkpoint.saving import membership_term
from tests.checkpoint import mishaps
from tests.checkpoint.stage import acting

NAME = "history"
#: The array that ranks have together.
_ROWS, _COLUMNS = 23, 11
#: Bytes that ranks have for themselves: mostly one of the first.
_SIZES, _LARGE = (0, 1, 63, 977, 5000, 12_345), 70_001


class States:
    """What ranks have, of some sizes that are drawn.

    Parameters
    ----------
    rng : Random
        Draws them.
    """

    def __init__(self, rng: Random) -> None:
        self._sizes = [rng.choice(_SIZES) for _ in range(8)]
        if rng.random() < 0.3:
            self._sizes[rng.randrange(8)] = _LARGE
        self._alike, self._grows = rng.choice((0, 1, 333, 9000)), rng.random() < 0.3

    def of(self, number: int, rank: int, size: int) -> dict[str, Any]:
        """What a rank of so many has when it saves for the so-manieth time."""
        nbytes = self._sizes[rank] + (37 * number % 500 if self._grows else 0)
        return {
            "alike": np.arange(self._alike) + number,
            "own": PerRank(_noise(nbytes, 1000 * number + rank)),
            "bare": 1000 * number + rank,
            "part": self._part(rank, size, np.arange(_ROWS * 1.0 * _COLUMNS) + number),
            "text": f"{number} " * 200,
            "number": number,
        }

    def wanted(self, rank: int, size: int) -> dict[str, Any]:
        """What it asks for when others may have saved."""
        of_all = PerRank(lambda old, _: old)
        part = self._part(rank, size, np.zeros(_ROWS * _COLUMNS))
        alike = np.zeros(self._alike, np.int64)
        return {"alike": alike, "own": of_all, "bare": of_all, "part": part, "text": "",
                "number": 0}  # fmt: skip

    def check(self, found: Any, number: int, old: int, rank: int, size: int) -> None:
        """Compare bit for bit with what ``old`` ranks have saved; `wanted` if that is not 0."""
        wanted = self.of(number, rank, size)
        np.testing.assert_array_equal(found["alike"], wanted["alike"])
        np.testing.assert_array_equal(found["part"].array, wanted["part"].array)
        assert (found["text"], found["number"]) == (wanted["text"], number)
        if not old:
            np.testing.assert_array_equal(found["own"], wanted["own"].value)
            assert found["bare"] == wanted["bare"]
            return
        every = [self.of(number, other, old) for other in range(old)]
        assert found["bare"] == [one["bare"] for one in every]
        for mine, one in zip(found["own"], every, strict=True):
            np.testing.assert_array_equal(mine, one["own"].value)

    def _part(self, rank: int, size: int, whole: Any) -> Shard:
        """Give what a rank has of an array that all have together."""
        low, high = _ROWS * rank // size, _ROWS * (rank + 1) // size
        rows = whole.reshape(_ROWS, _COLUMNS)[low:high]
        return Shard(np.ascontiguousarray(rows), (_ROWS, _COLUMNS), (low, 0))


@dataclass(frozen=True)
class Try:
    """A save that ranks have begun: its number, the caller's, how many ranks, which launch."""

    number: int
    step: int
    size: int
    launch: int


class Ledger:
    """What is known of the saves of a job.

    Parameters
    ----------
    parity, keep : int
        As for `Checkpointer`.

    Attributes
    ----------
    tries : dict of int to Try
        Those that have begun.
    strays : set of int
        Numbers of those that nodes have which had left: they may come back.
    on_disk : int or None
        Number of the last one that is on disk.
    """

    def __init__(self, parity: int, keep: int) -> None:
        self._parity, self._keep = parity, keep
        self.tries: dict[int, Try] = {}
        self.strays: set[int] = set()
        self.on_disk: int | None = None
        self._standing: list[Try] = []
        self._harm: dict[int, set[tuple[int, int]]] = {}  # number -> members that are lost
        self._number: dict[tuple[str, tuple[int, int]], int] = {}

    def listen(self, patch: pytest.MonkeyPatch) -> None:
        """Hear of what ranks know when they begin to change files."""
        begin, clear, forget = (
            slot_set.SlotSet.clear,
            slot_set.clear,
            membership_term.MembershipTerm.forget_before,
        )

        def begun(own: slot_set.SlotSet, place: int, head: Header) -> bool:
            if (actor := acting()) is not None:
                self._number[head.run, head.age] = actor.trying
            return begin(own, place, head)

        def committed(*arguments: Any) -> None:
            if (actor := acting()) is not None and actor.trying in self.tries:
                self.commit(actor.trying)
            clear(*arguments)

        def restored(own: membership_term.MembershipTerm, one: Save | SavedFile) -> None:
            of = one if isinstance(one, SavedFile) else one.header
            self.restored(self._number[str(of.run), of.age])
            forget(own, one)

        patch.setattr(slot_set.SlotSet, "clear", begun)
        patch.setattr(membership_term, "clear", committed)
        patch.setattr(membership_term.MembershipTerm, "forget_before", restored)

    def number_of(self, header: Header) -> int:
        """Give the number of the try that a slot is of."""
        return self._number[header.run, header.age]

    def begin(self, of: Try) -> None:
        """A save begins: the oldest of its launch gives its slots."""
        if of.number not in self.tries:
            self.tries[of.number] = of
            mine = [one for one in self._standing if one.launch == of.launch]
            older = [one for one in self._standing if one.launch != of.launch]
            self._standing = older + mine[1 - self._keep :]
        assert self.tries[of.number] == of, "ranks save different steps"

    def commit(self, number: int) -> None:
        """All have it: those of launches before may go."""
        of = self.tries[number]
        if of not in self._standing:
            self._standing = [one for one in self._standing if one.launch == of.launch] + [of]

    def restored(self, number: int) -> None:
        """It came back, and was made whole: older ones may go."""
        self._harm.pop(number, None)
        self._standing = [one for one in self._standing if one.number >= number]

    def floor(self) -> int | None:
        """Give the last one that must come back, or a later one; None if none must."""
        for of in reversed(self._standing):
            lost = Counter(group for group, _ in self._harm.get(of.number, ()))
            if all(count <= self._parity for count in lost.values()):
                return max(of.number, self.on_disk or 0)
        return self.on_disk

    def visible(self, roots: list[Path]) -> dict[int, str]:
        """Give the tries of which there is something, and their runs."""
        every = (header for root in roots for _, header in mishaps.slots_in(root, NAME))
        return {self.number_of(one): one.run for one in every if one.state != WRITING}

    def hurt(self, root: Path, which: Callable[[Header], bool]) -> Iterator[Path]:
        """Give slots of a node that something is going to happen to."""
        for path, header in list(mishaps.slots_in(root, NAME)):
            if which(header):
                share = header.share
                self._harm.setdefault(self.number_of(header), set()).add(
                    (share.group, share.member)
                )
                yield path

    def leave(self, root: Path) -> None:
        """A node is not of the job any more; what is there may be there again."""
        self.strays |= set(self.visible([root]))
        assert all(self.hurt(root, lambda _: True))


def _noise(nbytes: int, seed: int) -> Any:
    """Give bytes that look like nothing."""
    words = np.arange(nbytes, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(seed * 40503)
    return (words >> np.uint32(13)).astype(np.uint8)
