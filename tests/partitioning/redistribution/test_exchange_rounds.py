"""In which calls messages between nodes are exchanged."""

from __future__ import annotations

from collections import Counter

import pytest

from closeranks.partitioning.redistribution.exchange_rounds import call_of, calls_of


@pytest.mark.parametrize("count", [2, 3, 4, 7, 40])
def test_nodes_take_turns(count: int) -> None:
    calls = calls_of(1 << 30, [*range(count), 0])
    assert calls == min(count - 1, 16)
    for node in range(count):
        given = Counter(call_of(node, other, count, calls) for other in range(count))
        taken = Counter(call_of(other, node, count, calls) for other in range(count))
        assert given == taken
        assert sorted(given) == list(range(calls))
        most = -(-(count - 1) // calls)
        assert all(given[call] - (call == 0) <= most for call in given)
        assert call_of(node, node, count, calls) == 0


def test_short_messages_go_at_once() -> None:
    nodes = [0, 0, 1, 1, 2, 2]
    assert calls_of((1 << 16) - 1, nodes) == 1
    assert calls_of(1 << 16, nodes) == 2
    assert calls_of(1 << 30, [0, 0]) == 1
