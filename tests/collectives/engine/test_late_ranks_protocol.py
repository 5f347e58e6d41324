"""A rank that has not entered, or does not answer, is absent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.collectives.engine.late_ranks_protocol import ArrivalQueries, ArrivalQuery


def test_it_waits_for_answers_until_its_time_is_over() -> None:
    query = ArrivalQuery(1, 4, turn=5, until_s=10.0)
    assert query.silent == (0, 2, 3)
    query.hear(0, 6, 5)
    assert query.absent(9.0) is None
    assert query.absent(10.0) == (2, 3)
    query.hear(2, 5, 5)
    query.hear(3, 7, 7)
    assert query.absent(9.0) == (2,)


def test_who_arrives_meanwhile_is_there() -> None:
    query = ArrivalQuery(0, 2, turn=0, until_s=1.0)
    query.hear(1, 0, 0)
    assert query.absent(0.0) == (1,)
    query.hear(1, 1, 0)
    assert query.absent(0.0) == ()


def test_who_is_held_up_in_an_earlier_collective_is_not_absent() -> None:
    query = ArrivalQuery(0, 4, turn=5, until_s=1.0)
    query.hear(0, 6, 5)
    query.hear(1, 5, 4)  # waits there for rank 2, as rank 0 does one later
    query.hear(3, 5, 5)  # has left it, and is late for this one, but holds nobody up there
    assert query.absent(1.0) == (2,)
    query.hear(2, 4, 4)  # it has not entered that either
    assert query.absent(0.0) == (2,)
    query.hear(2, 6, 4)  # now it has: that one will end, and this one waits for others
    assert query.absent(0.0) == (1, 3)


def test_who_is_behind_in_no_collective_does_not_hide_the_others() -> None:
    query = ArrivalQuery(0, 3, turn=9, until_s=1.0)
    query.hear(0, 10, 9)
    query.hear(1, 3, 3)
    query.hear(2, 9, 9)
    assert query.absent(0.0) == (1, 2)


def test_who_is_silent_but_seen_to_have_left_is_not_absent() -> None:
    query = ArrivalQuery(3, 5, turn=6, until_s=1.0)
    query.hear(3, 7, 6)
    seen = {0: 7, 1: 6, 2: 5, 3: 6}  # left it, stopped in it, not there
    assert query.absent(1.0, seen) == (1, 2, 4), "of rank 4 nothing is known"
    query.hear(1, 7, 6)
    query.hear(2, 7, 6)
    query.hear(4, 7, 6)
    assert query.absent(1.0, seen) == ()


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
        query = ArrivalQuery(asker, size, within[asker], until_s=1.0)
        for rank in range(size):
            if rank in within:
                query.hear(rank, within[rank] + 1, within[rank])
            elif rank not in silent:
                query.hear(rank, first, first)
        named.add(query.absent(2.0))
    assert named == {tuple(sorted(late))}


@given(st.data(), st.integers(1, 40), st.integers(0, 5))
def test_absent_are_exactly_the_silent_and_the_behind(
    data: st.DataObject, size: int, turn: int
) -> None:
    rank = data.draw(st.integers(0, size - 1))
    others = [other for other in range(size) if other != rank]
    counts = data.draw(st.fixed_dictionaries({other: st.none() | st.integers(0, 8)
                                              for other in others}))  # fmt: skip
    query = ArrivalQuery(rank, size, turn, until_s=1.0)
    for other, count in data.draw(st.permutations(list(counts.items()))):
        if count is not None:
            query.hear(other, count, count)  # in none
    missing = tuple(r for r, count in sorted(counts.items()) if count is None or count <= turn)
    assert query.absent(2.0) == missing
    assert (query.absent(0.0) is None) == (None in counts.values())


def test_a_query_that_came_to_nothing_says_nothing_of_a_later_collective() -> None:
    queries = ArrivalQueries(0, 3)
    first = queries.query(0, 1.0)
    assert first is not None
    assert first.to_ask() == (1, 2)
    queries.hear(1, 0, 1, 0)
    assert first.absent(1.2) is None, "rank 2 may answer; it arrives, and all ends well"
    assert queries.query(5, 9.0) is None, "the first one may be in flight"
    later = queries.query(5, 9.1)
    assert later is not None
    assert later.to_ask() == (1, 2)
    assert later.to_ask() == ()
    queries.hear(2, 0, 1, 0)  # what it was asked at first
    queries.hear(2, 5, 6, 5)
    assert later.absent(9.2) is None
    queries.hear(1, 5, 5, 5)
    assert later.absent(9.2) == (1,)


@given(st.permutations(range(4)))
def test_queries_of_what_is_in_flight_do_not_disturb_each_other(order: list[int]) -> None:
    queries = ArrivalQueries(0, 2)
    made = [queries.query(turn, 0.1 * lap) for lap in range(6) for turn in order]
    assert [query for query in made if query is not None] == [made[0]] * 6
    left = order[1:]
    again = [queries.query(turn, 1.0) for _ in range(3) for turn in left]
    assert [query.turn for query in again if query is not None] == [left[0]] * 3


def test_an_old_answer_is_none() -> None:
    queries = ArrivalQueries(0, 2)
    queries.hear(1, 0, 0, 0)  # nobody asks
    queries.query(3, 0.0)
    queries.query(4, 1.0)
    query = queries.query(4, 1.0)
    assert query is not None
    queries.hear(1, 3, 4, 3)
    assert query.silent == (1,)


def test_the_higher_rank_asks_later_and_the_next_one_waits_less() -> None:
    queries = ArrivalQueries(3, 8)
    queries.asked(2, 0.5, now_s=-9.0)  # that was an earlier one
    queries.asked(5, 0.5, now_s=0.0)  # and this is a later one
    assert queries.query(4, 0.0) is None
    assert queries.query(4, 0.039) is None
    first = queries.query(4, 8.0)  # it has computed meanwhile
    assert first is not None
    assert first.until_s == 8.5
    other = ArrivalQueries(3, 8)
    other.asked(4, 0.5, now_s=0.0)
    assert other.query(4, 0.0) is None
    assert other.query(4, 0.58) is None
    other.asked(9, 0.5, now_s=0.59)
    second = other.query(4, 0.6)
    assert second is not None
    assert second.until_s == pytest.approx(0.8)
