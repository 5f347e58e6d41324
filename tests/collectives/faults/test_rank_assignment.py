"""Who sits where after a recovery."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from closeranks.collectives.faults.rank_assignment import ProcessReport, assign_seats, is_over


def test_vacant_seats_go_to_spares_in_order() -> None:
    said = [
        ProcessReport(0),
        ProcessReport(3),
        ProcessReport(None),
        ProcessReport(None),
        ProcessReport(None),
    ]
    found = assign_seats(said, 4)
    assert found.seats == (0, 1, 2, 3)
    assert found.seat_of == {0: 0, 1: 3, 2: 1, 3: 2}
    assert found.joined == (1, 2)
    assert found.first_survivor == 0


def test_without_vacancies_spares_wait() -> None:
    found = assign_seats([ProcessReport(None), ProcessReport(1), ProcessReport(0)], 2)
    assert (found.seats, found.joined, found.first_survivor) == ((0, 1), (), 1)
    assert 0 not in found.seat_of


def test_without_replacement_seats_stay_vacant() -> None:
    found = assign_seats([ProcessReport(5), ProcessReport(2)], 0)
    assert (found.seats, found.joined) == ((2, 5), ())


def test_spares_alone_have_nobody_to_wait_for() -> None:
    assert is_over([ProcessReport(None), ProcessReport(None, is_new=True)])
    assert not is_over([ProcessReport(None), ProcessReport(2), ProcessReport(1, tells=True)])


def test_whoever_leaves_with_a_word_ends_it_for_all() -> None:
    assert is_over(
        [
            ProcessReport(0, tells=True),
            ProcessReport(None),
            ProcessReport(1, "no more coffee", tells=True),
        ]
    )


@given(
    st.integers(1, 20).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))
    ),
    st.integers(0, 5),
    st.randoms(),
)
def test_every_seat_is_taken_once(who: tuple[int, set[int]], spares: int, chance: object) -> None:
    seats, alive = who
    said = [ProcessReport(seat) for seat in alive] + [ProcessReport(None)] * spares
    chance.shuffle(said)  # type: ignore[attr-defined]
    found = assign_seats(said, seats)
    assert len(found.seats) == len(set(found.seats)) == min(seats, len(alive) + spares)
    assert sorted(found.seat_of.values()) == list(found.seats)
    for rank, report in enumerate(said):
        if report.seat is not None:
            assert found.seat_of[rank] == report.seat
    assert set(found.joined) == set(found.seats) - alive
