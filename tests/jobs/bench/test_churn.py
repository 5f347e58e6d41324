"""Churn: the schedule, the model, and a judge that sees what is wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.jobs.bench.churn import member
from closeranks.jobs.bench.churn.campaign import seen, total
from closeranks.jobs.bench.churn.judge import judge
from closeranks.jobs.bench.churn.model import FEWEST, MOST, ChurnEvent, Model, episode, met, victims
from closeranks.jobs.bench.churn.record import Record, line, part, read, read_sums, whole

PLAN = episode(5, 5, 4)
RECORDS = Model(PLAN, 0).run()


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(0, 9))
def test_a_schedule_uses_up_all_but_two(seed: int, members: int, spares: int) -> None:
    plan = episode(seed, members, spares)
    assert plan == episode(seed, members, spares)
    assert sum(len(event.places) for event in plan.events) == members + spares - FEWEST
    steps = [event.step for event in plan.events]
    assert steps == sorted(set(steps))
    left, waiting = members, spares
    for event in plan.events:
        assert max(event.places) < left
        taken = min(len(event.places), waiting)
        left, waiting = left - len(event.places) + taken, waiting - taken
        assert left >= FEWEST


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(0, 9))
def test_the_model_is_right(seed: int, members: int, spares: int) -> None:
    plan = episode(seed, members, spares)
    verdict = judge(plan, Model(plan, seed).run())
    assert verdict.wrong == ()
    assert verdict.unplanned == 0
    assert verdict.kills + verdict.stops == members + spares - FEWEST
    assert verdict.joins == spares


def _one(change: Callable[[Record], Record], place: int = 40) -> list[Record]:
    return [*RECORDS[:place], change(RECORDS[place]), *RECORDS[place + 1 :]]


@pytest.mark.parametrize(("records", "says"), [
    (_one(lambda one: one._replace(total=one.total & ~1)), "got"),
    (_one(lambda one: one._replace(total=one.total + 2)), "got"),
    (_one(lambda one: one._replace(total=-1)), "got"),
    (_one(lambda one: one._replace(epoch=one.epoch + 1)), "2 worlds"),
    (_one(lambda one: one._replace(waiting=one.waiting + 1)), "members count"),
    (_one(lambda one: one._replace(seat=one.alive[one.seat == one.alive[0]])),
     "several in one seat"),
    ([one for one in RECORDS if one.step != 7], "step 7: nobody ended it"),
    ([one._replace(epoch=0) if one.step >= 100 else one for one in RECORDS], "step 100"),
    ([one._replace(alive=one.alive[1:], total=one.total & ~(1 << one.alive[0]))
      if one.step == 3 else one for one in RECORDS], "step 3"),
])  # fmt: skip
def test_the_judge_sees_what_is_wrong(records: list[Record], says: str) -> None:
    found = judge(PLAN, records).wrong
    assert any(says in words for words in found), found


def _moved(one: Record, epoch: int) -> Record:
    """Let a record be of another epoch, with its marks."""
    return one._replace(epoch=epoch, marks=whole(one.alive, one.step, epoch).marks)


def _stale() -> list[Record]:
    """All sums but the first of each epoch are those of the step before."""
    began = {epoch: min(one.step for one in RECORDS if one.epoch == epoch)
             for epoch in {one.epoch for one in RECORDS}}  # fmt: skip
    return [one if one.step == began[one.epoch] else
            one._replace(marks=whole(one.alive, one.step - 1, one.epoch).marks)
            for one in RECORDS]  # fmt: skip


def _tripled(one: Record) -> Record:
    """Let seat 1's part be lost, and seat 0's be there three times: the bits are the same."""
    lost, tripled = (int(part(seat, one.step, one.epoch)[1]) for seat in (1, 0))
    return one._replace(marks=one.marks - lost + 2 * tripled)


def _swapped() -> list[Record]:
    """The processes of seats 0 and 1 change places for a step."""
    names = {one.seat: one.process for one in RECORDS if one.step == 3}
    swap = {0: names[1], 1: names[0]}
    return [one._replace(process=swap.get(one.seat, one.process)) if one.step == 3 else one
            for one in RECORDS]  # fmt: skip


@pytest.mark.parametrize(("records", "says"), [
    (_stale(), "not all of this step"),
    ([_tripled(one) if {0, 1} <= set(one.alive) else one for one in RECORDS],
     "not all of this step"),
    ([_moved(one, 3 * one.epoch) for one in RECORDS], "epoch 3 after 0, though 1 are gone"),
    ([_moved(one, one.epoch + (one.step >= 4)) for one in RECORDS],
     "step 4: epoch 1 after 0, though 0 are gone"),
    ([_moved(one, one.epoch + 1) for one in RECORDS], "step 0: epoch 1 after 0"),
    ([one._replace(waiting=one.waiting + 1) for one in RECORDS], "step 0: 5 spares wait, not 4"),
    ([one._replace(waiting=0) if one.step >= 5 else one for one in RECORDS],
     "step 5: other members or spares in epoch 0"),
    (Model(PLAN._replace(events=()), 0).run(), "lives on"),
    (Model(PLAN._replace(events=PLAN.events[1:]), 0).run(),
     f"step {PLAN.events[0].step}: seat 2 was to meet a {PLAN.events[0].kind} and lives on"),
    (_swapped(), "process p0 had seats [0, 1]"),
])  # fmt: skip
def test_logs_that_agree_with_each_other_and_are_wrong_are_seen(
    records: list[Record], says: str
) -> None:
    found = judge(PLAN, records).wrong
    assert any(says in words for words in found), found


@pytest.mark.parametrize("words", [[5, 1, 5, 1], [5, 1, 5, 2], [5, 1, 4, 1], [-1, -1, -1, -1]])
def test_sums_are_those_of_all_elements(words: list[int]) -> None:
    alike = words == [5, 1, 5, 1]
    assert read_sums(np.array(words)) == ((5, 1) if alike else (-1, -1))


@given(st.sets(st.integers(0, MOST - 1), min_size=1), st.integers(0, 500), st.integers(0, 60))
def test_parts_add_up_to_the_whole(alive: set[int], step: int, epoch: int) -> None:
    total = sum(part(seat, step, epoch).astype(object) for seat in alive)
    assert read_sums(np.array(total, np.int64)) == whole(tuple(sorted(alive)), step, epoch)


@pytest.mark.parametrize("place", range(0, len(RECORDS) - 2, 7))
def test_a_living_member_that_missed_a_step_is_seen(place: int) -> None:
    missed = RECORDS[place]
    assert any(one.step > missed.step for one in RECORDS if one.process == missed.process)
    found = judge(PLAN, [*RECORDS[:place], *RECORDS[place + 1 :]]).wrong
    assert found == (f"step {missed.step}: seat {missed.seat} missed it and lives on",)


def test_who_dies_before_it_has_written_has_missed_nothing() -> None:
    silent = {(one.step, seat) for one in RECORDS for seat in one.alive}
    assert silent - {(one.step, one.seat) for one in RECORDS}
    assert judge(PLAN, RECORDS).wrong == ()


def test_a_spare_that_never_came_is_seen() -> None:
    plan = episode(5, 3, 1)
    model = Model(plan, 0)
    model._spares.clear()
    verdict = judge(plan, model.run())
    assert (verdict.unplanned, verdict.unfinished, verdict.joins) == (0, 0, 0)
    waiting = [f"step {step}: 0 spares wait, not 1" for step in range(plan.steps)]
    assert verdict.wrong == (*waiting, "0 spares joined, not 1")


def test_a_process_that_is_gone_without_an_event_is_counted() -> None:
    name = RECORDS[0].process
    records = [one for one in RECORDS if one.process != name or one.step < 2]
    assert judge(PLAN, records).unplanned == 1


def test_an_episode_that_ends_too_soon_is_unfinished_and_its_sums_are_judged() -> None:
    records = [one for one in _one(lambda one: one._replace(total=0)) if one.step < 60]
    verdict = judge(PLAN, records)
    assert (verdict.steps, verdict.unfinished) == (60, PLAN.steps - 60)
    assert len(verdict.wrong) == 1
    assert judge(PLAN, []).unfinished == PLAN.steps
    assert judge(PLAN, RECORDS).unfinished == 0


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(0, 3), st.integers(1, 3))
def test_deaths_that_nobody_planned_leave_no_event_without_a_victim(
    seed: int, members: int, spares: int, deaths: int
) -> None:
    plan = episode(seed, members, spares)
    model, died = Model(plan, seed), 0
    for step in range(plan.steps):
        alive = sorted(model._members)
        if step and died < deaths and len(alive) > FEWEST and met(plan.events, step) is None:
            model._recover({alive[-1]})
            died += 1
        model._step(step, met(plan.events, step))
    verdict = judge(plan, model.records)
    assert verdict.wrong == ()
    assert verdict.unplanned == died
    assert len(model._members) >= FEWEST


def test_an_event_meets_who_is_there() -> None:
    event = ChurnEvent(3, "kill", (1, 4), 0.0)
    assert victims(event, (0, 2, 3, 5, 6), 0) == (2, 6)
    assert victims(event, (0, 2, 3, 5), 0) == (2,)
    assert victims(event, (0, 2), 0) == ()
    assert victims(event, (0, 2), 1) == (2,)
    assert victims(event, (0,), 2) == ()


def test_a_member_spares_places_that_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[tuple[object, ...]]()
    monkeypatch.setattr(
        "threading.Timer",
        lambda *given: SimpleNamespace(start=lambda: started.append(given)),
    )
    event = ChurnEvent(3, "kill", (1, 4), 0.5)
    for seat, strikes in ((0, False), (2, True), (3, False)):
        comm: Any = SimpleNamespace(seat=seat, alive=(0, 2, 3))
        assert member._strikes(comm, event, 0) is strikes
    assert started == [(0.5, os.kill, (os.getpid(), signal.SIGKILL))]


def _member(step: int, add: Callable[..., object]) -> Record:
    """Let seat 2 of five play a step whose first attempt it has missed."""
    comm: Any = SimpleNamespace(
        seat=2, epoch=0, alive=(0, 1, 2, 3, 4), incarnation=lambda _seat: 0,
        synchronize=lambda _state: None, Allreduce=add,
        attempts=lambda: [nullcontext(SimpleNamespace(number=2))],
    )  # fmt: skip
    return member._step(comm, {"step": step}, PLAN, spared=False)


def test_an_all_reduce_that_writes_nothing_is_seen() -> None:
    record = _member(0, lambda _given, _taken: None)
    assert (record.total, record.marks) == (-1, -1)
    record = _member(0, lambda given, taken: np.copyto(taken, given))
    assert (record.total, record.marks) == whole((2,), 0, 0)


def test_an_event_meets_who_has_missed_the_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    struck = list[float]()
    monkeypatch.setattr(
        "threading.Timer",
        lambda delay_s, *_: SimpleNamespace(start=lambda: struck.append(delay_s)),
    )
    monkeypatch.setattr("time.sleep", struck.append)
    _member(PLAN.events[0].step, lambda _given, _taken: None)
    assert struck == [PLAN.events[0].delay_s, member.HANG_S]


def test_who_sees_a_job_end_too_soon_is_not_lost() -> None:
    for places in ([], [0], [0, 1, 2, 3]):
        kept = [one for one in RECORDS if one.step < 4]
        gone = {one.seat for number, one in enumerate(kept[-5:]) if number in places}
        kept = [one for one in kept if one.step < 3 or one.seat not in gone]
        assert judge(PLAN, kept).unplanned == 0
        assert judge(PLAN, [one for one in kept if one.step < 1 or one.seat]).unplanned == 1


def test_records_are_read_as_far_as_they_were_written(tmp_path: Path) -> None:
    text = "".join(map(line, RECORDS[:3]))
    (tmp_path / "1.log").write_text(text + line(RECORDS[3])[:-4], encoding="utf-8")
    assert read(tmp_path) == RECORDS[:3]


def test_growth_that_nobody_saw_is_not_counted() -> None:
    plan = episode(5, 3, 1)  # one recovery with all seats taken
    verdict = judge(plan, Model(plan, 0).run())
    assert (verdict.kib_a_recovery, verdict.files_a_recovery) == (None, None)
    none = {"kills": 1, "stops": 1, "joins": 1, "unplanned": 0, "hangs": 0, "wrong": 0,
            "status": 0, "kib_a_recovery": None, "files_a_recovery": None}  # fmt: skip
    some = none | {"kib_a_recovery": 40.0, "files_a_recovery": -2.0}
    assert seen([none, some], "files_a_recovery") == [-2.0]
    assert "memory +40 KiB, files -2.00 a recovery" in total([none, some])
    assert "too few recoveries" in total([none])
