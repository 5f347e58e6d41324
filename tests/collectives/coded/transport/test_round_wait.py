"""How waits of a round end: no wait ignores what has ended the round for others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from closeranks.collectives.coded.transport.round_memory import WORDS_BYTES
from closeranks.collectives.coded.transport.round_wait import RoundWait
from closeranks.comms.mpi import ulfm
from closeranks.errors import PeerLost, Revoked

#: A wait that ignores everything ends after so many looks.
MOST = 400


class World:
    """The first world of a family."""

    revoked = False

    def check(self, operation: str) -> None:
        """Raise if it was revoked."""
        if self.revoked:
            raise Revoked(operation)

    def revoke(self) -> None:
        """Let others hear of it."""
        self.revoked = True

    def verdict(self, operation: str) -> PeerLost:
        """Say what has ended it."""
        return PeerLost(operation, [2])


class Job:
    """One rank, and what others do to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dead, self.looks, self.world = tuple[int, ...](), 0, World()
        monkeypatch.setattr(ulfm, "is_on", lambda: True)
        monkeypatch.setattr(ulfm, "failed", lambda _: self.dead)
        monkeypatch.setattr(ulfm, "listen", lambda: False)
        words: dict[str, int] = {"failed": 0}

        def swap_if(at: str, expected: int, value: int) -> int:
            before = words[at]
            words[at] = value if before == expected else before
            return before

        self.memory: Any = SimpleNamespace(
            words=SimpleNamespace(
                load=words.__getitem__, store=words.__setitem__, swap_if=swap_if
            ),
            failed="failed", failure_words=np.zeros(WORDS_BYTES, np.uint8),
        )  # fmt: skip
        self.told: list[Any] = []
        messages: Any = SimpleNamespace(tell_or_revoke=lambda *given: self.told.append(given))
        meeting: Any = SimpleNamespace(refuse=lambda: self.told.append("refused"))
        membership: Any = SimpleNamespace(
            family=SimpleNamespace(world=self.world, timeout_s=None), opened=None,
            service=SimpleNamespace(plain=None, guard=SimpleNamespace(refuse=lambda _: None)),
            comm=SimpleNamespace(Get_rank=lambda: 0),
        )  # fmt: skip
        self.membership = membership
        memory: Any = self.memory
        self.wait = RoundWait(membership, memory, messages, lambda: None, meeting)

    def ready(self) -> bool:
        """Never be ready, unless nothing ends the wait."""
        self.looks += 1
        return self.looks > MOST

    def until(self, blocks: Callable[[frozenset[int]], bool] = bool) -> None:
        """Wait for what does not come."""
        self.wait.until(self.ready, blocks)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    """A rank whose others do as a test says."""
    return Job(monkeypatch)


def test_the_abort_word_ends_a_wait(job: Job) -> None:
    job.world.revoke()
    with pytest.raises(Revoked):
        job.until()
    assert job.wait.is_broken


def test_a_rank_that_has_failed_ends_it_and_is_named_with_its_words(job: Job) -> None:
    job.wait.note_failure(3, b"ValueError: mine")
    with pytest.raises(PeerLost, match="ValueError: mine") as caught:
        job.until()
    assert list(caught.value.ranks) == [3]


def test_a_death_ends_it_only_if_the_round_needs_that_rank(job: Job) -> None:
    job.dead = (2,)
    job.until(lambda _: False)
    assert job.wait.dead == {2}
    job.looks = 0
    with pytest.raises(PeerLost):
        job.until()
    assert job.world.revoked


@pytest.mark.parametrize("what", ["dead", "revoked", "failed"])
def test_a_wait_for_a_lock_ends_as_well(job: Job, what: str) -> None:
    if what == "dead":
        job.dead = (2,)
    elif what == "revoked":
        job.world.revoke()
    else:
        job.wait.note_failure(3, b"ValueError: mine")
    with pytest.raises((PeerLost, Revoked)):
        job.wait.wait_locked(job.ready)


def test_an_end_that_all_know_is_not_told_as_a_failure_of_this_rank(job: Job) -> None:
    job.world.revoke()
    job.wait.tell_failure(PeerLost("CodedAllreduce.step", [2]))
    assert job.told == []
    assert job.memory.words.load("failed") == 0


def test_after_a_recovery_it_is_outlived_and_not_refused(job: Job) -> None:
    job.wait.is_broken = True
    with pytest.raises(Revoked):
        job.wait.refuse()
    job.membership.family.world = World()
    assert job.wait.is_outlived
    job.wait.refuse()
