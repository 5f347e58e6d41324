"""How a rank votes whose calls nobody has waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from mpi4py import MPI

from closeranks.collectives.engine import progress_engine
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.faults import attempts
from closeranks.collectives.faults.attempts import Attempt
from closeranks.collectives.faults.votes import ABORT, AGAIN, AGREED, Outcome, outcome_of
from closeranks.comms.mpi import ulfm
from closeranks.errors import PeerLost, Revoked, UsageError


class Judge:
    """A recovery that believes whatever this rank votes."""

    size, comm = 1, MPI.COMM_SELF

    def __init__(self) -> None:
        self.votes: list[int] = []
        self.is_limited = False

    @contextmanager
    def last_resort(self) -> Iterator[None]:
        self.is_limited = True
        yield
        self.is_limited = False

    def vote(self, vote: int, *_: object) -> Outcome:
        self.votes.append(vote)
        return outcome_of(vote, vote)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Left:
    """A request, or a persistent operation, that nobody has waited for."""

    def __init__(self, end: bool | BaseException, *, is_void: bool = False) -> None:
        self._end, self.is_void, self.under_way = end, is_void, not is_void
        self.is_spoilt = False

    def spoil(self) -> None:
        self.is_spoilt = True

    def Test(self) -> bool:
        if isinstance(self._end, BaseException):
            raise self._end
        return self._end

    def is_gone(self) -> bool:
        return True


def voted(attempt: Attempt, judge: Judge) -> tuple[int, BaseException | None]:
    """Run an empty body; gives the vote, and what the block has raised."""
    error: BaseException | None = None
    try:
        with attempt:
            pass
    except BaseException as met:
        error = met
    return judge.votes[0], error or attempt.error


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize(
    ("end", "vote"),
    [
        (True, AGREED),
        (False, ABORT),
        (MPI.Exception(MPI.ERR_TRUNCATE), ABORT),
        (ValueError("of a reduction"), ABORT),
        (KeyboardInterrupt(), ABORT),
        (PeerLost("Allreduce", [1]), AGAIN),
        (Revoked("Allreduce"), AGAIN),
    ],
)
def test_no_attempt_is_agreed_whose_calls_have_failed(
    monkeypatch: pytest.MonkeyPatch, end: bool | BaseException, vote: int, starts: bool
) -> None:
    monkeypatch.setattr(attempts, "is_gone", lambda _: True)
    judge: Any = Judge()
    attempt, left = Attempt(judge, 1, (), restores=True), Left(end)
    follow: Any = attempt.follow_start if starts else attempt._requests.append
    follow(left)
    given, error = voted(attempt, judge)
    assert given == vote
    assert left.is_spoilt == (starts and vote != AGREED)
    if isinstance(end, BaseException):
        assert error is end
    else:
        assert end or isinstance(error, UsageError)


def test_no_attempt_is_agreed_over_a_start_that_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "is_gone", lambda _: True)
    judge: Any = Judge()
    attempt, void = Attempt(judge, 1, (), restores=True), Revoked("allreduce")
    left: Any = Left(void, is_void=True)
    attempt.follow_start(left)
    assert voted(attempt, judge) == (AGAIN, void)


def test_what_may_still_be_written_is_not_waited_for_without_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge, looks = Judge(), list[bool]()

    def is_gone(_: object) -> bool:
        looks.append(judge.is_limited)
        return len(looks) > 3

    monkeypatch.setattr(attempts, "is_gone", is_gone)
    monkeypatch.setattr(ulfm, "is_on", lambda: True)
    anybody: Any = judge
    attempt, left = Attempt(anybody, 1, (), restores=True), Left(Revoked("allreduce"))
    request: Any = left
    attempt._requests.append(request)
    assert voted(attempt, anybody)[0] == AGAIN
    assert looks == [True] * 4


def test_a_device_is_through_before_the_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    judge: Any = Judge()
    attempt, looks = Attempt(judge, 1, (), restores=True), list[int]()

    class Stream:
        @property
        def done(self) -> bool:
            looks.append(len(judge.votes))
            return len(looks) > 3

    world: Any = SimpleNamespace(check=lambda _: None)
    monkeypatch.setattr(attempts, "make_way", lambda _: False)
    monkeypatch.setattr(ulfm, "is_on", lambda: True)
    stream: Any = Stream()
    attempt.follow_stream((0, 7), stream, world)
    assert voted(attempt, judge) == (AGREED, None)
    assert looks == [0] * 4


def test_who_waits_for_a_device_hears_of_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    judge: Any = Judge()
    attempt = Attempt(judge, 1, (), restores=True)

    def check(_: str) -> None:
        raise PeerLost("attempts", [1])

    world: Any = SimpleNamespace(check=check)
    monkeypatch.setattr(attempts, "make_way", lambda _: False)
    monkeypatch.setattr(ulfm, "is_on", lambda: True)
    stream: Any = SimpleNamespace(done=False)
    attempt.follow_stream((0, 7), stream, world)
    vote, error = voted(attempt, judge)
    assert vote == AGAIN
    assert isinstance(error, PeerLost)


@pytest.mark.parametrize("in_flight", [False, True])
def test_who_waits_in_node_memory_looks_for_the_dead(
    monkeypatch: pytest.MonkeyPatch, in_flight: bool
) -> None:
    looked: list[bool] = []
    driver = engine()
    monkeypatch.setattr(type(driver), "in_flight", in_flight, raising=False)
    monkeypatch.setattr(driver, "lock", threading.RLock())  # no thread of other tests has it
    world: Any = SimpleNamespace(look=lambda: looked.append(True), closed=True)
    progress_engine.make_way(world)
    assert looked == [True]
