"""Rounds of the ranks of a node, in every order: one decision, right sums, no rank waits for ever.

Planted defects must be found.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any, TypeVar

import pytest

from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.transport.gradient_exchange import GradientExchange
from closeranks.collectives.coded.transport.round_decision import RoundDecision
from closeranks.collectives.coded.transport.round_memory import RoundMemory
from closeranks.collectives.coded.transport.round_work import SharedWork
from tests.collectives.coded.transport import rank_code
from tests.collectives.coded.transport.node_orders import Node, Wrong
from tests.collectives.coded.transport.rank_code import DIED, ENDED, LOST

_T = TypeVar("_T")


@pytest.mark.parametrize(
    ("micro", "rounds", "slots", "deaths"),
    [(1, 1, 1, 1), (2, 1, 1, 2), (1, 2, 1, 1), (2, 2, 1, 1), (1, 3, 2, 0)],
)
@pytest.mark.parametrize("is_loose", [False, True])
def test_two_ranks(micro: int, rounds: int, slots: int, deaths: int, *, is_loose: bool) -> None:
    scheme = PartialRepetition(2, 1, micro)
    found = Node(scheme, rounds=rounds, slots=slots, deaths=deaths, is_loose=is_loose).explore()
    assert (ENDED, ENDED) in found.ends
    if deaths:  # of which some are in time to be helped, and some are not
        assert {(DIED, ENDED), (ENDED, DIED), (DIED, LOST), (LOST, DIED)} <= found.ends
    assert found.states > 1000


def test_a_share_that_nobody_can_compute_any_more_keeps_nobody_waiting() -> None:
    found = Node(PartialRepetition(2, 0, 2), slots=1, deaths=1).explore()
    assert (LOST, DIED) in found.ends


def test_three_ranks() -> None:
    found = Node(PartialRepetition(3, 2, 1), slots=1, is_loose=True).explore()
    assert found.ends == {(ENDED,) * 3}
    assert found.states > 400_000


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("micro", "deaths", "is_loose"), [(2, 2, True), (1, 1, False)], ids=["loose", "exact"]
)
def test_three_ranks_of_which_some_die(micro: int, deaths: int, *, is_loose: bool) -> None:
    scheme = PartialRepetition(3, 2, micro)
    found = Node(scheme, slots=1, deaths=deaths, is_loose=is_loose).explore()
    sys.stdout.write(f"3 ranks, {micro} micro-batches, {deaths} deaths: {found.states} states\n")
    assert {(ENDED,) * 3, (DIED, ENDED, ENDED), (DIED, LOST, LOST)} <= found.ends
    assert found.states > 2_000_000


def planted(kind: type[_T], *changes: tuple[str, str]) -> type[_T]:
    """Give a class of the package with a defect; each old text stands there once."""
    source = textwrap.dedent(inspect.getsource(kind))
    for old, new in changes:
        assert source.count(old) == 1, (kind, old)
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    code = compile("from __future__ import annotations\n" + source, kind.__module__, "exec")
    exec(code, vars(sys.modules[kind.__module__]), made)
    found: type[_T] = made[kind.__name__]
    return found


_ADDS = "        self._words.add(self._memory.word(self._round, ADDED), 1)\n"
_RETURNS = "            return  # another rank was faster\n"
_FLAGS = (
    "        flags = self._waiting()  # the later: a rank that waits then does not begin to help\n"
)
_COMPLETE = "        complete = self._is_complete()\n"
_MOVED = "            words.add(moved, placed)\n"
_PLACED = "            words.store(self._memory.rank_word(round_, self._member, STATE), PLACED)\n"
_LEFT = "        if any(load(memory.rank_word(round_, one, DONE)) != every for one in helped):\n"
DEFECTS: dict[str, tuple[type[Any], tuple[tuple[str, str], ...], str, dict[str, int]]] = {
    "decide twice": (
        RoundDecision,
        (("self._words.swap_if(self._memory.word(self._round, DECIDED), 0, index + 1)",
          "self._words.store(self._memory.word(self._round, DECIDED), index + 1)"),),
        "decided twice", {},
    ),
    "add without a claim": (SharedWork, ((_RETURNS, "            pass\n"),), "twice", {}),
    "count before it is added": (
        SharedWork, ((_ADDS, ""), (_RETURNS, _RETURNS + _ADDS)), "sums|is over", {},
    ),
    "a rank that computes owns a part": (
        RoundDecision, (("self._words.load(at) == WAITS", "self._words.load(at) != 9"),),
        "while it computes", {},
    ),
    "a rank that begins to help owns a part": (
        RoundDecision, ((_FLAGS, ""), (_COMPLETE, _FLAGS + _COMPLETE)),
        "while it computes", {"n": 3},
    ),
    "a stale slot": (
        RoundMemory, (("(round_, OPEN)) == round_", "(round_, OPEN)) <= round_"),),
        "is in the slot of round", {"rounds": 2},
    ),
    "a slot that was not left": (
        RoundMemory, (("LEFT), 1) + 1 == self._members", "LEFT), 1) == 0"),),
        "has not left", {"rounds": 2},
    ),
    "wait for what died with a rank": (
        SharedWork, (("        return not self.is_complete()\n", "        return False\n"),),
        "for ever", {"deaths": 1},
    ),
    "wait for the part of a rank that died": (
        GradientExchange, (("        return any(load(", "        return False and any(load("),),
        "for ever", {"deaths": 1},
    ),
    "say so before the part is counted": (
        GradientExchange, ((_MOVED, ""), (_PLACED, _PLACED + _MOVED)), "for ever", {"deaths": 1},
    ),
    "give up what others can compute": (
        SharedWork, ((_LEFT, "        if False:\n"),),
        "for nothing", {"n": 3, "deaths": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_are_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kind, changes, words, sizes = DEFECTS[name]
    monkeypatch.setattr(rank_code, kind.__name__, planted(kind, *changes))
    n = sizes.pop("n", 2) if (sizes := dict(sizes)) else 2
    with pytest.raises(Wrong, match=words):
        Node(PartialRepetition(n, n - 1, 1), slots=1, is_loose=n > 2, **sizes).explore()
