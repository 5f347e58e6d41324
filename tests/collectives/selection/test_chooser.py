"""The chooser: the same answers everywhere, trials that settle, reasons that print."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from closeranks.collectives.arguments.call_key import UNSIZED, Agreed, size_class
from closeranks.collectives.builders.catalogue import algorithms
from closeranks.collectives.engine.init_state import alike
from closeranks.collectives.selection.call_options import NATIVE, SHARED
from closeranks.collectives.selection.choice import Choice
from closeranks.collectives.selection.chooser import AGAIN, Chooser
from closeranks.collectives.selection.explanation import explain
from closeranks.collectives.selection.planner import plan
from closeranks.collectives.selection.pricing import KernelShares, NativeModel
from closeranks.collectives.selection.rules import Rules
from closeranks.collectives.selection.trial import Trial
from closeranks.collectives.selection.tuning_table import shape
from closeranks.comms.topology.topology import Topology
from closeranks.errors import UsageError

CLUSTER = Topology.regular(node=4, rank=2)


def settle(trial: Trial, *seconds: float) -> str | None:
    """Let every candidate take the same seconds at each of its turns."""
    taken = dict(zip(trial.candidates, seconds, strict=True))
    while not trial.is_full:
        trial.record(taken[trial.turn])
    return trial.settle(trial.samples)


def eager(**numbers: Any) -> Chooser:
    """Make a chooser that tries every kind of call at once."""
    chooser = Chooser(CLUSTER, trials=True, **numbers)
    chooser.try_all()
    return chooser


def race(chooser: Chooser, call: Agreed, seconds: dict[str, float]) -> None:
    """Make the calls of a race; candidates that are not named take a second."""
    choice = chooser.choose(call)
    while choice.is_tried:
        assert choice.trial is not None
        choice.trial.record(seconds.get(choice.algorithm, 1.0))
        if choice.trial.is_full:
            chooser.conclude(call, choice.trial.samples[:])
            return
        choice = chooser.choose(call)


def test_many_rounds_go_in_bursts_whose_first_do_not_count() -> None:
    trial = Trial(("ring", NATIVE), rounds=16, races=1)
    turns = []
    while not trial.is_full:
        turns.append(trial.turn)
        trial.record(9.0 if len(trial.samples) % 8 < 2 else 1.0 + (trial.turn == NATIVE))
    assert turns == (["ring"] * 8 + [NATIVE] * 8) * 2
    assert trial.settle(trial.samples) == "ring"
    assert trial.agreed_s == {"ring": 1.0, NATIVE: 2.0}


def test_a_trial_takes_turns_and_settles_on_the_agreed_fastest() -> None:
    trial = Trial(("ring", NATIVE), rounds=3)
    turns = []
    for seconds in (9.0, 1.0, 3.0, 2.0, 4.0, 2.5):
        assert not trial.is_full
        turns.append(trial.turn)
        trial.record(seconds)
    assert turns == ["ring", NATIVE] * 3
    assert trial.is_full
    assert trial.settle(trial.samples) is None
    assert trial.agreed_s == {"ring": 3.5, NATIVE: 2.25}
    assert settle(trial, 1.0, 2.0) == "ring"


def test_a_plan_must_be_clearly_faster_than_the_library() -> None:
    trial = Trial(("ring", NATIVE), rounds=3, races=1)
    assert trial.settle([1.0, 1.02] * 3) == NATIVE


def test_long_calls_that_nobody_waits_for_are_plans() -> None:
    quick = eager(native=NativeModel(1e-6, 1e-10))
    long, short = (Agreed("allreduce", size_class(nbytes)) for nbytes in (1 << 24, 8))
    known = quick.settled(long)
    assert known.algorithm == NATIVE
    unattended = known.unattended()
    assert unattended in algorithms("allreduce")
    assert quick.settled(short).unattended() == NATIVE, "not worth a thread"
    other = next(name for name in known.predictions if name not in (NATIVE, unattended))
    trial = Trial((unattended, other, NATIVE), winner=NATIVE)
    trial.agreed_s = {unattended: 9.0, other: 2.0, NATIVE: 1.0}
    tried = known._replace(trial=trial)
    assert tried.unattended() == other, "measured, not predicted"
    trial.winner, trial.agreed_s[unattended] = unattended, 0.5
    assert tried.unattended() == unattended


def test_a_short_call_that_nobody_waits_for_is_no_plan_unless_a_kernel_begins_it() -> None:
    trial = Trial((SHARED, NATIVE), winner=SHARED, agreed_s={SHARED: 1e-5, NATIVE: 2e-5})
    short = Choice(SHARED, 1e-5, {SHARED: 3e-5}, {}, trial)
    assert short.seconds(SHARED) == 1e-5
    assert short.seconds("ring") == math.inf
    assert short.unattended() == NATIVE, "not worth a thread"
    assert short.unattended(persistent=True) == SHARED
    alone = Choice(SHARED, 1e-5, {SHARED: 1e-5}, {}, None)
    assert alone.seconds(SHARED) == 1e-5
    assert alone.unattended() == SHARED, "the library cannot"


def test_a_close_race_is_run_again_between_the_best() -> None:
    trial = Trial(("tree", "ring", NATIVE), rounds=2)
    for seconds in (9.0, 9.0, 9.0, 3.0, 1.8, 2.0):
        trial.record(seconds)
    assert trial.settle(trial.samples) is None
    assert (trial.candidates, trial.calls_left) == (("ring", NATIVE), 12)
    for seconds in (1.8, 2.0) * 6:
        trial.record(seconds)
    assert trial.settle([2.2, 2.0]) == NATIVE
    assert trial.agreed_s == {"tree": 3.0, "ring": 2.2, NATIVE: 2.0}


def test_after_single_turns_all_that_are_close_meet_again() -> None:
    trial = Trial(("leader", "rails", "tree", NATIVE), rounds=1)
    assert trial.settle([1.0, 1.05, 1.5, 2.5]) is None
    assert (trial.candidates, trial.calls_left) == (("leader", "rails"), 4)
    for seconds in (1.1, 1.0, 1.2, 1.0):
        trial.record(seconds)
    assert trial.settle(trial.samples) == "rails"
    assert trial.agreed_s == pytest.approx({"leader": 1.15, "rails": 1.0, "tree": 1.5, NATIVE: 2.5})


def test_a_winner_must_win_again_now_and_then() -> None:
    chooser, call = eager(), Agreed("allreduce", size_class(1 << 20))
    plan = chooser.choose(call).algorithm
    race(chooser, call, {plan: 0.1})
    for _ in range(AGAIN):
        assert chooser.choose(call)[:2] == (plan, 0.1)
    again = chooser.choose(call)
    assert again.trial is not None
    assert (again.is_tried, again.trial.candidates) == (True, (plan, NATIVE))
    races = 0
    while chooser.choose(call).is_tried:
        races += 1
        race(chooser, call, {plan: 0.6, NATIVE: 0.5})
    assert races > 1, "it is not given up after one"
    known = {chooser.choose(call).algorithm for _ in range(10 * AGAIN - 1)}
    assert known == {NATIVE}
    assert chooser.choose(call).is_tried, "and the library must win again, too"


def test_what_a_disturbed_trial_has_passed_over_has_another_chance() -> None:
    trial = Trial((SHARED, "tree", "ring", NATIVE), rounds=3)
    assert settle(trial, 1.2, 3.0, 1.0, 2.0) == "ring"
    trial.meet_again()
    assert trial.candidates == ("ring", SHARED, NATIVE), "tree was far behind"
    assert settle(trial, 1.0, 0.7, 2.0) == SHARED


def test_a_clear_race_is_run_once() -> None:
    assert Trial(("ring", NATIVE), rounds=1).settle([1.0, 2.0]) == "ring"


def test_a_plan_is_given_up_after_two_races() -> None:
    trial = Trial(("ring", "tree", NATIVE), rounds=1)
    assert trial.settle([3.0, 3.1, 2.0]) is None
    assert trial.candidates == ("ring", NATIVE)
    assert settle(trial, 3.0, 2.0) == NATIVE
    trial = Trial(("ring", NATIVE), rounds=2)
    assert settle(trial, 1.0, 2.0) == "ring"
    trial.meet_again()
    assert settle(trial, 3.0, 2.0) is None, "a disturbance"
    assert settle(trial, 1.9, 2.0) == "ring"


def test_a_short_call_loses_three_times_before_it_is_given_up() -> None:
    trial = Trial((SHARED, NATIVE), rounds=16)
    assert settle(trial, 0.9, 1.0) is None
    assert settle(trial, 1.3, 1.0) is None, "it is not warm yet"
    assert (trial.candidates, trial.calls_left) == ((SHARED, NATIVE), 2 * 144)
    assert settle(trial, 0.6, 1.0) == SHARED
    far = Trial((SHARED, NATIVE), rounds=16)
    assert settle(far, 1.5, 1.0) is None
    assert settle(far, 1.5, 1.0) == NATIVE, "too far behind"


def test_a_chooser_follows_its_trial() -> None:
    chooser, call = eager(), Agreed("allreduce", size_class(1 << 20))
    seen, left = set(), chooser.calls_to_settle(call)
    assert left > 0
    for number in range(left):
        choice = chooser.choose(call)
        assert chooser.calls_to_settle(call) == left - number
        assert choice.trial is not None
        seen.add(choice.algorithm)
        choice.trial.record(1.0 if choice.algorithm == choice.trial.candidates[0] else 2.0)
    assert NATIVE in seen
    assert len(seen) >= 2
    trial = choice.trial
    assert trial is not None
    assert chooser.conclude(call, trial.samples[:])
    known = chooser.choose(call)
    assert known.algorithm == trial.candidates[0]
    assert (known.source, chooser.calls_to_settle(call)) == ("tried", 0)


def test_two_choosers_agree() -> None:
    native = NativeModel(1e-4, 1e-8)
    answers = [
        [
            Chooser(CLUSTER, native=native).choose(Agreed("allreduce", k)).algorithm
            for k in range(0, 28, 4)
        ]
        for _ in range(2)
    ]
    assert answers[0] == answers[1]


def test_without_native_there_is_always_a_plan() -> None:
    chooser = Chooser(CLUSTER, allow_native=False)
    for commutative in (True, False):
        choice = chooser.choose(Agreed("allreduce", 12, commutative=commutative))
        assert choice.algorithm in algorithms("allreduce")
        assert choice.objections[NATIVE] == "deterministic"


def test_hierarchy_wins_where_the_network_is_slow() -> None:
    assert "hierarchical" in plan("allreduce", CLUSTER, nbytes=1 << 24).algorithm.name


def test_explanations_name_every_candidate() -> None:
    chooser = Chooser(CLUSTER, native=NativeModel(1e-5, 1e-9))
    found = explain(chooser, Agreed("allreduce", size_class(1 << 20)), 1 << 20)
    assert set(found.candidates) == {NATIVE, *algorithms("allreduce")}
    assert found.algorithm in str(found)
    assert found.bytes_per_level.keys() <= set(CLUSTER.levels)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"operation": "allreduse"}, "operation 'allreduse'; one of barrier"),
        ({"algorithm": "rings"}, "no algorithm 'rings'; one of auto, native, "),
        ({"dtype": "float33"}, "dtype 'float33'"),
        ({"op": "avg"}, "op 'avg'; one of sum"),
        ({"nbytes": 7}, "nbytes=7; a multiple of the element's 4 bytes"),
        ({"count": -1}, "count is -1; give a whole number, 0 <= count"),
        ({"count": 1.5}, "count is 1.5; give a whole number"),
        ({"count": float("nan")}, "count is nan"),
        ({"count": 2**60}, "elements of 4 B over 8 ranks; stay below"),
        ({"nbytes": "8"}, "nbytes is '8'"),
        ({"dtype": "S"}, "dtype 'S'"),
        ({"topology": 5}, "topology is 5; give a closeranks.Topology"),
        ({"algorithm": 5}, "algorithm is 5; one of auto"),
        ({"op": 5}, "op 5; one of sum"),
        ({"count": None}, "allreduce without a size; give count= or nbytes="),
        ({"operation": "alltoall", "count": None}, "alltoall without a size"),
        ({"operation": "gatherv", "counts": [[1], [1, 2]]}, "as many for each rank"),
        ({"count": 1, "nbytes": 4}, "count=1 and nbytes=4; give one of them"),
        ({"operation": "bcast", "root": 8}, "root of bcast is 8; .*< 8"),
        ({"operation": "gatherv"}, "gatherv without counts"),
        ({"operation": "gatherv", "counts": [1, 2]}, r"integers of shape \(8,\)"),
        ({"operation": "gatherv", "counts": [-1] * 8}, "counts from -1 to -1"),
        ({"algorithm": "ring", "op": "ordered"}, "ring cannot do this allreduce"),
    ],
)
def test_bad_questions_get_an_answer(arguments: dict[str, object], words: str) -> None:
    sized = {"count", "nbytes", "counts"} & arguments.keys()
    size = {} if sized or arguments.get("operation") == "gatherv" else {"count": 4}
    asked = {"operation": "allreduce", "topology": CLUSTER, **size, **arguments}
    with pytest.raises(UsageError, match=words):
        plan(**asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [99, -1, 8, 1.5, float("nan"), "0", None])
def test_a_rank_that_there_is_not_has_no_steps(rank: int) -> None:
    chosen = plan("allreduce", CLUSTER, count=4)
    for ask in (lambda: list(chosen.steps(rank)), lambda: chosen.text(rank),
                lambda: chosen.script(rank)):  # fmt: skip
        with pytest.raises(UsageError, match=r"rank is .*< 8"):
            ask()


@pytest.mark.parametrize(
    ("operation", "short", "long"),
    [("allreduce", 15, 16), ("bcast", 15, 16), ("allgather", 12, 13), ("alltoall", 12, 13)],
)
def test_the_library_gets_what_it_moves_at_once_where_ranks_may_die(
    operation: str, short: int, long: int
) -> None:
    """That is 32 KiB in all; blocks of the 8 ranks may be put together."""
    model = NativeModel(1e-6, 1e-10)
    chooser = eager(native=model, native_bytes=1 << 15)
    known = chooser.choose(Agreed(operation, short))
    assert NATIVE in known.predictions
    assert known.trial is None or NATIVE in known.trial.candidates
    other = chooser.choose(Agreed(operation, long))
    assert "when a rank dies" in other.objections[NATIVE]
    assert NATIVE not in other.predictions
    assert other.trial is None or NATIVE not in other.trial.candidates
    assert "when a rank dies" in str(explain(chooser, Agreed(operation, long), 1 << long))


@pytest.mark.parametrize("operation", ["gatherv", "scatterv", "alltoallv"])
def test_where_no_rank_knows_all_sizes_it_gets_nothing_then(operation: str) -> None:
    chooser = Chooser(CLUSTER, native=NativeModel(0.0, 0.0), native_bytes=1 << 15)
    assert chooser.choose(Agreed(operation, 0)).algorithm in algorithms(operation)
    free = Chooser(CLUSTER, native=NativeModel(0.0, 0.0))
    assert free.choose(Agreed(operation, 0)).algorithm == NATIVE


def test_a_barrier_may_be_the_librarys_always() -> None:
    chooser = Chooser(CLUSTER, native=NativeModel(0.0, 0.0), native_bytes=0)
    assert chooser.choose(Agreed("barrier", 0)).algorithm == NATIVE


@pytest.mark.parametrize("seconds", [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (1.2, 1.0)])
@pytest.mark.parametrize("rounds", [1, 4, 16])
def test_without_the_library_plans_meet_again_and_again(
    rounds: int, seconds: tuple[float, float]
) -> None:
    """The last one, the safe choice, is a plan then, and may win and be served."""
    trial, known = Trial(("one", "safe"), rounds=rounds), {"one": seconds[0], "safe": seconds[1]}
    for _ in range(30):
        while trial.winner is None:
            trial.record(known[trial.turn])
            if trial.is_full:
                trial.settle(trial.samples)
        assert trial.winner == ("one" if seconds[0] < 0.9 * seconds[1] else "safe")
        if trial.rivals:
            trial.meet_again()


def test_who_comes_later_chooses_as_who_was_there() -> None:
    rules = Rules({"allreduce": ((float(1 << 30), "ring"),)})
    old = Chooser(Topology.regular(node=2, rank=2), trials=True, winners=rules)
    call = Agreed("allreduce", size_class(4096))
    for now in (Topology.regular(node=2, rank=2), Topology.regular(node=4, rank=1)):
        stays = alike(old.numbers, shape(old.topology), now)
        assert (stays.choose(call).source == "table") == (now == old.topology)
        numbers, sat = pickle.loads(pickle.dumps((old.numbers, shape(old.topology))))
        comes = alike(numbers, sat, now)
        assert comes.choose(call).algorithm == stays.choose(call).algorithm


def test_the_first_call_of_a_kind_is_served_as_others_have_found() -> None:
    """It is neither priced nor tried, and known until a trial here is over."""
    call = Agreed("allreduce", size_class(1 << 20))
    here = Topology.regular(node=1, rank=4)
    chooser = Chooser(here, trials=True, heritage={call: "ring"})
    first, second = chooser.choose(call), chooser.choose(call)
    assert (first.algorithm, first.predictions, first.trial) == ("ring", {}, None)
    assert second.is_tried
    assert chooser.best_known == {call: "ring"}, "measured, not predicted"
    assert second.trial is not None
    other = next(one for one in second.trial.candidates if one != "ring")
    while chooser.choose(call).is_tried:
        race(chooser, call, {other: 0.1})
    assert chooser.best_known == {call: other}


@pytest.mark.parametrize("operation", sorted(UNSIZED))
def test_fewer_ranks_inherit_no_plan_for_nodes_of_several(operation: str) -> None:
    """A rank knows its own counts only: none can price this very call."""
    call = Agreed(operation, 0)
    here = Topology.regular(node=2, rank=1)
    chooser = Chooser(here, native_bytes=1 << 15, heritage={call: "hierarchical"})
    assert chooser.choose(call).algorithm in set(algorithms(operation)) - {"hierarchical"}


def test_more_ranks_inherit_no_call_that_has_become_too_long_for_the_library() -> None:
    call, most = Agreed("allgather", 13), 1 << 15
    few, many = (Topology.regular(node=1, rank=size) for size in (4, 8))
    for here, name in ((few, {NATIVE}), (many, set(algorithms("allgather")))):
        chooser = Chooser(
            here, native=NativeModel(0.0, 0.0), native_bytes=most, heritage={call: NATIVE}
        )
        assert chooser.choose(call).algorithm in name


def test_what_one_communicator_measures_no_other_one_hears_of() -> None:
    """Threads may call both, in another order on each rank."""
    here, shares = Topology.regular(node=1, rank=4), KernelShares((8,), (0.1,))
    old = Chooser(here, native=NativeModel(1e-6, 1e-10), trials=True)
    numbers, pricing = old.numbers, old.pricing.copy()
    new = alike(numbers, shape(here), here, pricing=pricing, is_open=False)
    for one, others in ((old, (new,)), (new, ())):
        one.note_kernels("bcast" if one is old else "reduce", shares)
        assert not any(other.pricing.kernels for other in others)
    assert old.pricing.kernels == {"bcast": shares}
    assert numbers["kernels"] == {}
