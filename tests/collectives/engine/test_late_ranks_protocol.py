"""Roll calls: whoever has not entered, or does not answer, is absent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.collectives.engine.late_ranks_protocol import Roll, RollCall


def test_it_waits_for_answers_until_its_time_is_over() -> None:
    call = RollCall(1, 4, turn=5, until_s=10.0)
    assert call.silent == (0, 2, 3)
    call.hear(0, 6, 5)
    assert call.absent(9.0) is None
    assert call.absent(10.0) == (2, 3)
    call.hear(2, 5, 5)
    call.hear(3, 7, 7)
    assert call.absent(9.0) == (2,)


def test_who_arrives_meanwhile_is_there() -> None:
    call = RollCall(0, 2, turn=0, until_s=1.0)
    call.hear(1, 0, 0)
    assert call.absent(0.0) == (1,)
    call.hear(1, 1, 0)
    assert call.absent(0.0) == ()


def test_who_is_held_up_in_an_earlier_collective_is_not_absent() -> None:
    call = RollCall(0, 4, turn=5, until_s=1.0)
    call.hear(0, 6, 5)
    call.hear(1, 5, 4)  # waits there for rank 2, as rank 0 does one later
    call.hear(3, 5, 5)  # has left it, and is late for this one, but holds nobody up there
    assert call.absent(1.0) == (2,)
    call.hear(2, 4, 4)  # it has not entered that either
    assert call.absent(0.0) == (2,)
    call.hear(2, 6, 4)  # now it has: that one exit notice end, and this one waits for others
    assert call.absent(0.0) == (1, 3)


def test_who_is_behind_in_no_collective_does_not_hide_the_others() -> None:
    call = RollCall(0, 3, turn=9, until_s=1.0)
    call.hear(0, 10, 9)
    call.hear(1, 3, 3)
    call.hear(2, 9, 9)
    assert call.absent(0.0) == (1, 2)


def test_who_is_silent_but_seen_to_have_left_is_not_absent() -> None:
    call = RollCall(3, 5, turn=6, until_s=1.0)
    call.hear(3, 7, 6)
    seen = {0: 7, 1: 6, 2: 5, 3: 6}  # left it, stopped in it, not there
    assert call.absent(1.0, seen) == (1, 2, 4), "of rank 4 nothing is known"
    call.hear(1, 7, 6)
    call.hear(2, 7, 6)
    call.hear(4, 7, 6)
    assert call.absent(1.0, seen) == ()


@given(st.data(), st.integers(2, 12))
def test_all_who_wait_name_the_same_whoever_asks(data: st.DataObject, size: int) -> None:
    """Ranks that wait are held up by somebody who has not entered, or is silent."""
    late = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    silent = data.draw(st.sets(st.sampled_from(sorted(late))))
    first = 4  # where the late are awaited; others may have got further, to wait there
    within = {r: first + data.draw(st.integers(0, 2)) for r in range(size) if r not in late}
    within[min(within)] = first
    named = set()
    for asker in within:
        call = RollCall(asker, size, within[asker], until_s=1.0)
        for rank in range(size):
            if rank in within:
                call.hear(rank, within[rank] + 1, within[rank])
            elif rank not in silent:
                call.hear(rank, first, first)
        named.add(call.absent(2.0))
    assert named == {tuple(sorted(late))}


@given(st.data(), st.integers(1, 40), st.integers(0, 5))
def test_absent_are_exactly_the_silent_and_the_behind(
    data: st.DataObject, size: int, turn: int
) -> None:
    rank = data.draw(st.integers(0, size - 1))
    others = [other for other in range(size) if other != rank]
    counts = data.draw(st.fixed_dictionaries({other: st.none() | st.integers(0, 8)
                                              for other in others}))  # fmt: skip
    call = RollCall(rank, size, turn, until_s=1.0)
    for other, count in data.draw(st.permutations(list(counts.items()))):
        if count is not None:
            call.hear(other, count, count)  # in none
    missing = tuple(r for r, count in sorted(counts.items()) if count is None or count <= turn)
    assert call.absent(2.0) == missing
    assert (call.absent(0.0) is None) == (None in counts.values())


def test_a_call_that_came_to_nothing_says_nothing_of_a_later_collective() -> None:
    roll = Roll(0, 3)
    first = roll.call(0, 1.0)
    assert first is not None
    assert first.to_ask() == (1, 2)
    roll.hear(1, 0, 1, 0)
    assert first.absent(1.2) is None, "rank 2 may answer; it arrives, and all ends well"
    assert roll.call(5, 9.0) is None, "the first one may be in flight"
    later = roll.call(5, 9.1)
    assert later is not None
    assert later.to_ask() == (1, 2)
    assert later.to_ask() == ()
    roll.hear(2, 0, 1, 0)  # what it was asked at first
    roll.hear(2, 5, 6, 5)
    assert later.absent(9.2) is None
    roll.hear(1, 5, 5, 5)
    assert later.absent(9.2) == (1,)


@given(st.permutations(range(4)))
def test_calls_of_what_is_in_flight_do_not_disturb_each_other(order: list[int]) -> None:
    roll = Roll(0, 2)
    calls = [roll.call(turn, 0.1 * lap) for lap in range(6) for turn in order]
    assert [call for call in calls if call is not None] == [calls[0]] * 6
    left = order[1:]
    again = [roll.call(turn, 1.0) for _ in range(3) for turn in left]
    assert [call.turn for call in again if call is not None] == [left[0]] * 3


def test_an_old_answer_is_none() -> None:
    roll = Roll(0, 2)
    roll.hear(1, 0, 0, 0)  # nobody asks
    roll.call(3, 0.0)
    roll.call(4, 1.0)
    call = roll.call(4, 1.0)
    assert call is not None
    roll.hear(1, 3, 4, 3)
    assert call.silent == (1,)


def test_the_higher_rank_asks_later_and_the_next_one_waits_less() -> None:
    roll = Roll(3, 8)
    roll.asked(2, 0.5, now_s=-9.0)  # that was an earlier one
    roll.asked(5, 0.5, now_s=0.0)  # and this is a later one
    assert roll.call(4, 0.0) is None
    assert roll.call(4, 0.039) is None
    first = roll.call(4, 8.0)  # it has computed meanwhile
    assert first is not None
    assert first.until_s == 8.5
    other = Roll(3, 8)
    other.asked(4, 0.5, now_s=0.0)
    assert other.call(4, 0.0) is None
    assert other.call(4, 0.58) is None
    other.asked(9, 0.5, now_s=0.59)
    second = other.call(4, 0.6)
    assert second is not None
    assert second.until_s == pytest.approx(0.8)
