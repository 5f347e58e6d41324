"""Which stores pack a half, by what they cost."""

from __future__ import annotations

from closeranks.partitioning.redistribution.store_choice import StoreChoice

MIB = 1 << 20


def ways(choice: StoreChoice, through_s: float, past_s: float, rounds: int = 64) -> list[bool]:
    """Give the way of each round, where packing costs so much."""
    found = []
    for _ in range(rounds):
        past = choice.past(MIB)
        choice.note(MIB, past_s if past else through_s, past=past)
        found.append(past)
    return found


def test_the_cheaper_way_is_taken_and_the_other_one_tried() -> None:
    assert sum(ways(StoreChoice(), 1.0, 1.0)) == 4
    assert sum(ways(StoreChoice(), 1.0, 0.8)) == 4  # not clearly cheaper
    assert sum(ways(StoreChoice(), 1.0, 0.3)) >= 56


def test_a_change_is_noticed() -> None:
    choice = StoreChoice()
    assert ways(choice, 1.0, 0.3)[-1]
    assert sum(ways(choice, 1.0, 2.0)[-32:]) == 2
    assert sum(ways(choice, 1.0, 0.3, 160)[-32:]) == 30


def test_a_disturbed_round_decides_nothing() -> None:
    choice = StoreChoice()
    assert ways(choice, 1.0, 0.3)[-1]
    choice.note(MIB, 100.0, past=True)
    assert choice.past(MIB)


def test_a_few_bytes_stay_in_the_caches() -> None:
    choice = StoreChoice()
    ways(choice, 1.0, 0.1)
    assert not choice.past(1 << 12)
