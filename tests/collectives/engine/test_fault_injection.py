"""Schedules of faults: what a text means, and that each fault is met once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from closeranks.collectives.engine import fault_injection
from closeranks.collectives.engine.fault_injection import Fault, Injection, schedule
from closeranks.errors import UsageError


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[Fault]:
    """What would have happened."""
    found: list[Fault] = []
    monkeypatch.setattr(fault_injection, "meet", found.append)
    return found


def test_a_schedule_is_read() -> None:
    text = "kill seat=3 step=10; stop seat=1 at=allreduce:rail for=5s; slow seat=2 factor=4;"
    assert schedule(text) == (
        Fault("kill", 3, 10),
        Fault("stop", 1, at="allreduce:rail", for_s=5.0),
        Fault("slow", 2, factor=4.0),
    )
    assert schedule("exit seat=0 status=3 after=20ms at=vote") == (
        Fault("exit", 0, at="vote", after_s=0.02, status=3),
    )
    assert schedule("") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("murder seat=1", "no action 'murder'"),
        ("kill", "no seat in 'kill'"),
        ("kill seat=one", "'seat=one' in 'kill seat=one'"),
        ("kill seat=1 when=now", "no 'when'"),
        ("kill seat=1 at=noon", "no point 'noon'"),
        ("kill seat=1 at=allreduce:middle", "no point 'allreduce:middle'"),
        ("stop seat=1 for=5", "'for=5'"),
        ("kill seat=-1", "seat and step from 0 on"),
        ("kill seat=1 step=-1", "seat and step from 0 on"),
        ("exit seat=1 status=256", "a status up to 255"),
        ("kill seat=1 seat=2", "'seat' twice"),
        ("kill seat=1 for=5s", "'for' means nothing to kill"),
        ("stop seat=1 factor=2", "'factor' means nothing to stop"),
        ("slow seat=1 after=3ms", "'after' means nothing to slow"),
        ("slow seat=1 factor=nan", "a factor from 1 on, finite"),
        ("slow seat=1 factor=inf", "a factor from 1 on, finite"),
        ("slow seat=1 factor=0.5", "a factor from 1 on"),
        ("raise seat=1", "raise outside of an operation"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        schedule(text)


@pytest.mark.parametrize(
    ("action", "point", "more", "said"),
    [
        ("slow", "vote", {"factor": 4}, "'at' means nothing to slow"),
        ("kill", "vote", {"factor": 4}, "'factor' means nothing to kill"),
        ("kill", "begin", {"for_s": 5}, "'for' means nothing to kill"),
        ("stop", "begin", {"status": 3}, "'status' means nothing to stop"),
        ("stop", "begin", {"for_s": float("nan")}, "finite times"),
        ("kill", "begin", {"after_s": -1.0}, "finite times"),
        ("kill", "begin", {"after_s": "1ms"}, "after_s='1ms'; .* numbers for times"),
        ("exit", "begin", {"status": 2.5}, "status=2.5; whole numbers for seat"),
        ("kill", 3, {}, "at=3; .* texts for action and point"),
    ],
)
def test_what_a_program_asks_for_is_refused_alike(
    action: str, point: str, more: dict[str, float], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Injection(0).fail_at(0, 10, point, action, **more)


def test_a_seat_that_nobody_has_is_refused() -> None:
    assert schedule("kill seat=3", 4) == schedule("kill seat=3")
    with pytest.raises(UsageError, match=r"no seat 4, 9 among 4 ranks.*seats are 0 to 3"):
        schedule("kill seat=9; stop seat=4; kill seat=0", 4)


@pytest.mark.parametrize(("seat", "step", "said"), [
    (99, 0, "no seat 99 among 2 ranks.*seats are 0 to 1"),
    (2, None, "no seat 2 among 2 ranks"),
    ("1", 0, "seat='1'; whole numbers"),
    (1, "0", "step='0'; whole numbers"),
    (1.0, 0, "seat=1.0; whole numbers"),
    (-1, 0, "from 0 on"),
])  # fmt: skip
@pytest.mark.parametrize("joined", [False, True])
def test_what_a_program_asks_of_nobody_is_refused(
    seat: Any, step: Any, said: str, joined: bool
) -> None:
    injected = Injection(0, seats=2, joined=joined)
    injected.fail_at(np.int64(1), np.int64(0))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=said):
        injected.fail_at(seat, step)


@pytest.mark.parametrize("word", ["step=1_0", "seat=1_0", "factor=1_0", "status=1_0"])
def test_numbers_are_digits(word: str) -> None:
    action = {"factor": "slow", "status": "exit"}.get(word.partition("=")[0], "kill")
    with pytest.raises(UsageError, match=word):
        schedule(f"{action} seat=1 {word}" if "seat" not in word else f"{action} {word}")


def test_a_fault_is_met_once_by_its_seat_in_its_step(met: list[Fault]) -> None:
    faults = schedule("kill seat=1 step=1 at=vote; kill seat=2 step=1 at=vote; stop seat=1")
    injected = Injection(1, faults)
    injected.reach("begin")
    assert met == [faults[2]]
    injected.next_step()
    injected.reach("vote")
    injected.next_step()
    assert not injected.awaits("shrink")
    assert injected.awaits("vote")
    injected.reach("vote")
    injected.reach("vote")
    assert met == [faults[2], faults[0]]


def test_newcomers_meet_nothing(met: list[Fault]) -> None:
    injected = Injection(0, joined=True)
    injected.fail_at(0, None)
    injected.reach("begin")
    with pytest.raises(UsageError, match="no point 'noon'"):
        injected.fail_at(0, None, "noon")
    assert not met


def test_python_adds_faults(met: list[Fault]) -> None:
    injected = Injection(0)
    injected.fail_at(1, None)
    injected.fail_at(0, 0, "allreduce:end", "stop", for_s=1.0)
    injected.next_step()
    injected.reach("begin")
    injected.reach("allreduce:end")
    assert met == [Fault("stop", 0, 0, "allreduce:end", for_s=1.0)]
    with pytest.raises(UsageError):
        injected.fail_at(0, 0, "nowhere")
