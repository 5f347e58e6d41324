"""Roll calls: whoever has not entered, or does not answer, is absent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from closeranks.collectives.rollcall import RollCall


def test_it_waits_for_answers_until_its_time_is_over() -> None:
    call = RollCall(1, 4, turn=5, until_s=10.0)
    assert call.silent == (0, 2, 3)
    call.hear(0, 6)
    assert call.absent(9.0) is None
    assert call.absent(10.0) == (2, 3)
    call.hear(2, 5)
    call.hear(3, 7)
    assert call.absent(9.0) == (2,)


def test_who_arrives_meanwhile_is_there() -> None:
    call = RollCall(0, 2, turn=0, until_s=1.0)
    call.hear(1, 0)
    assert call.absent(0.0) == (1,)
    call.hear(1, 1)
    assert call.absent(0.0) == ()


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
            call.hear(other, count)
    missing = tuple(r for r, count in sorted(counts.items()) if count is None or count <= turn)
    assert call.absent(2.0) == missing
    assert (call.absent(0.0) is None) == (None in counts.values())
