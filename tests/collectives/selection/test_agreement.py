"""Ranks choose alike, whichever way their calls take: pure, on pairs of ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.collectives.analysis.cost_model import Speed
from closeranks.collectives.arguments.call_key import Agreed, CallKey
from closeranks.collectives.dispatch import dispatch
from closeranks.collectives.dispatch.dispatch import AlgorithmChoice
from closeranks.collectives.fastpath.shortcut import Shortcuts
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.selection.call_options import AUTO, NATIVE, SHARED
from closeranks.collectives.selection.chooser import Chooser
from closeranks.collectives.selection.findings import CallKind, TrialFinding, TrialFindings
from closeranks.collectives.selection.pricing import KernelShares, NativeModel, Pricing
from closeranks.collectives.selection.rules import Rules
from closeranks.comms.topology.topology import Topology

NODE, CLUSTER = Topology.regular(node=1, rank=4), Topology.regular(node=4, rank=2)
OPERATIONS = ("allreduce", "bcast")
#: Beside the commutative calls of two types, and those that not every way can serve.
FORMS = ("float", "int", "ordered", "library only", "plans only")


@pytest.fixture(autouse=True, scope="module")
def kernels_for_all() -> Iterator[None]:
    """Take all reductions for those that kernels can do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "lacks_kernel", lambda _: False)
        yield


class Member:
    """Stands for a communicator."""

    size, rank = 4, 0


class Kernel:
    """Stands for a `ShmCall`, which needs ranks."""

    address, calls = 8, 0

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def followed_by(self, other: Kernel | None) -> None:
        """Be one of a chain."""


class Rank:
    """One rank: takes the short way where it may, or never."""

    def __init__(self, chooser: Chooser, *, is_quick: bool) -> None:
        self.chooser, self.is_quick, self._member = chooser, is_quick, Member()
        member: Any = self._member
        self._shortcuts = Shortcuts(member, calls_left=chooser.calls_left)
        family: Any = SimpleNamespace(deterministic=False, threaded=True, tuning=Rules())

        def problem(demand: Any) -> Problem:
            return chooser.example(demand.key.agreed)

        bindings: Any = SimpleNamespace(problem=problem)
        self._choice = AlgorithmChoice(family, chooser, self._shortcuts, lambda: bindings)

    def call(self, operation: str, size_class: int, form: str, taken_s: float) -> str:
        """Make a call; gives the algorithm."""
        if self.is_quick and (name := self._short_way(operation, size_class, form)):
            return name
        agreed = Agreed(operation, size_class, form != "ordered", form != "plans only")
        planned = "no plan" if form == "library only" else None
        native = "no name" if form == "plans only" else None
        no_local: Any = None
        key = CallKey(agreed, no_local)
        demand: Any = SimpleNamespace(
            operation=operation, key=key, agreed=agreed, planned=planned, native=native, root=0,
            commutative=agreed.commutative, nbytes=agreed.nbytes,
        )  # fmt: skip
        name, choice = self._choice._choose(demand, "")
        if choice is not None and choice.is_tried:
            assert choice.trial is not None
            choice.trial.record(taken_s)
            if choice.trial.is_full:
                self.chooser.conclude(agreed, choice.trial.samples[:])
        elif agreed.commutative and not planned and not native:
            if name == NATIVE:
                classes = self.chooser.library_classes(agreed)
                self._shortcuts.learn(operation, classes)
            elif name == SHARED:
                kernel: Any = Kernel(form)
                self._shortcuts.learn_near(operation, size_class, kernel)
        return name

    def _short_way(self, operation: str, size_class: int, form: str) -> str | None:
        """Do what machine code does: the sizes are known, and the kind for a kernel."""
        known = self._shortcuts._known[operation].classes.get(size_class)
        left = self.chooser.calls_left(operation)
        if known is None or left[size_class] <= 0 or form == "plans only":
            return None
        if not known.shm_calls and known.library:
            left[size_class] -= 1
            return NATIVE
        kinds: Any = known.shm_calls
        if form in kinds:
            left[size_class] -= 1
            return SHARED
        return None


@cache
def pricing(topology: Topology) -> Pricing:
    """Price once: that takes most of the time, and depends on no call."""
    shares = {"allreduce": KernelShares((8, 1 << 20), (0.9, 1.2))}
    kernels = shares if topology is NODE else None
    return Pricing(topology, native=NativeModel(2e-6, 1e-9), speed=Speed(6e-6),
                   allow_native=True, native_bytes=None, kernels=kernels)  # fmt: skip


def choosers(topology: Topology, found: TrialFindings | None, *, is_open: bool) -> list[Chooser]:
    """Make the choosers of two ranks."""
    return [
        Chooser(topology, trials=True, findings=found, is_open=is_open, pricing=pricing(topology))
        for _ in range(2)
    ]


@pytest.mark.parametrize("topology", [NODE, CLUSTER], ids=["node", "cluster"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), is_open=st.booleans(), knows=st.booleans())
def test_a_rank_that_takes_no_shortcut_goes_where_the_others_go(
    topology: Topology, seed: int, is_open: bool, knows: bool
) -> None:
    rng = random.Random(seed)
    found = (
        TrialFindings({CallKind("allreduce", 5): TrialFinding(SHARED, 1e-6, 2e-6)})
        if knows
        else None
    )
    if topology is CLUSTER:
        found = None
    quick, slow = (
        Rank(chooser, is_quick=is_quick)
        for chooser, is_quick in zip(
            choosers(topology, found, is_open=is_open), (True, False), strict=True
        )
    )
    classes = [rng.choice((3, 5, 6, 14, 22)) for _ in range(2)]
    speeds: dict[str, float] = {}
    for number in range(400):
        operation, size_class = rng.choice(OPERATIONS), rng.choice(classes)
        weights = (20, 5, 2, 1, 1) if operation == "allreduce" else (20, 5, 0, 0, 0)
        form = rng.choices(FORMS, weights)[0]
        took_s = speeds.setdefault(str(number % 40), rng.uniform(1e-6, 5e-6))
        names = [rank.call(operation, size_class, form, took_s) for rank in (quick, slow)]
        assert names[0] == names[1], (number, operation, size_class, form, names)
    assert quick.chooser.findings.by_kind == slow.chooser.findings.by_kind
    assert quick.chooser.findings.budget == slow.chooser.findings.budget
    for operation in OPERATIONS:
        left = [rank.chooser.calls_left(operation).tolist() for rank in (quick, slow)]
        assert left[0] == left[1]


def test_the_short_way_is_taken_at_all() -> None:
    """Else the test above would compare the long way with itself."""
    rank = Rank(choosers(NODE, None, is_open=True)[0], is_quick=True)
    names = {rank.call("allreduce", 5, "float", 1e-6) for _ in range(10)}
    assert names == {SHARED}
    assert rank._short_way("allreduce", 5, "float") == SHARED
    assert rank._short_way("allreduce", 5, "ordered") is None
    assert AUTO not in names
