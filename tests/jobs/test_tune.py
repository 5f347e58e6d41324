"""The pure part of ``closeranks tune``: stages, fits, rules."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.collectives.analysis.cost_model import Speed, cost
from closeranks.collectives.selection.call_options import NATIVE
from closeranks.collectives.selection.rules import read_rules
from closeranks.comms.topology.link import SEGMENT_BYTES, Link
from closeranks.comms.topology.topology import Topology
from closeranks.jobs.tune import survey as stages
from closeranks.jobs.tune.command import level_rows, segment_rows, stage_rows
from closeranks.jobs.tune.survey import Point, Weight, crossing, line, misfit
from closeranks.jobs.tune.winners import asked, rules

MACHINES = {
    "flat": Topology.regular(rank=3),
    "nodes": Topology.regular(node=4, rank=2),
    "sites": Topology.regular(site=2, node=2, rank=3),
    "uneven": Topology.from_groups(("node", "rank"), [[0, 0, 0, 1, 1], list(range(5))]),
}
EACH = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
NO_SPEED = Speed()


def test_every_tier_has_its_stages() -> None:
    found = [(one.level, one.kind) for one in stages.stages(MACHINES["sites"])]
    inner = [(level, kind) for level in ("rank", "node") for kind in ("sum", "gather")]
    assert found == [*inner, ("site", "allreduce")]
    assert [one.kind for one in stages.stages(MACHINES["flat"])] == ["allreduce"]
    assert stages.stages(Topology.regular(rank=1)) == []


@EACH
def test_sizes_divide_and_reach_from_small_messages_to_segments(machine: Topology) -> None:
    for one in stages.stages(machine):
        small, *large = stages.sizes(one)
        assert one.message_bytes(small) < SEGMENT_BYTES <= one.message_bytes(large[0])
        assert len(large) >= 3
        assert all(low < high for low, high in pairwise((small, *large)))
        assert all(nbytes % (one.owners * stages.ITEM) == 0 for nbytes in (small, *large))


@EACH
def test_a_stage_keeps_to_its_level(machine: Topology) -> None:
    for one in stages.stages(machine):
        sent = cost(stages.plan(one, machine, 4096 * one.owners)).bytes_per_level
        assert {level for level, nbytes in sent.items() if nbytes} == {one.level}


@pytest.mark.parametrize("rails", [1, 2, None])
def test_a_weight_counts_what_follows_each_other(rails: int | None) -> None:
    machine = Topology.regular(node=4, rank=8)
    machine = machine.with_links({"node": Link(1e-6, 1e9, rails)})
    inside, _, across = stages.stages(machine)
    share = 1 << 20
    weight = stages.weigh(inside, machine, share, NO_SPEED)
    assert weight == Weight(1, share * 7 / 8, 0), "all talk to all at the same time"
    weight = stages.weigh(across, machine, share, NO_SPEED)
    assert weight == Weight(4, 2 * share * 3 / 4 * 8 / (rails or 8), 0), "ports share cards"


@EACH
def test_a_weight_is_the_price_taken_apart(machine: Topology) -> None:
    speed = Speed(0.0, 1e-10, 1e-10)
    for one in stages.stages(machine):
        link = Link(3e-6, 2e9, machine.links[one.level].rails)
        known = replace(machine, links={**machine.links, one.level: link})
        for nbytes in stages.sizes(one):
            weight = stages.weigh(one, machine, nbytes, speed)
            price = cost(stages.plan(one, known, nbytes), speed=speed).seconds
            whole = Point(one, nbytes, weight, 1.0).expected_s(link)
            assert 0.7 * whole <= price <= 1.8 * whole


positive = st.floats(1e-7, 1e-2)


@given(
    start=positive, rate=st.floats(1e6, 1e11), noise=st.lists(st.floats(-0.05, 0.05), min_size=9)
)
def test_a_line_is_found_again(start: float, rate: float, noise: list[float]) -> None:
    xs = [(2.0, float(SEGMENT_BYTES << step)) for step in range(9)]
    exact = [2 * start + nbytes / rate for _, nbytes in xs]
    found_start, found_per_byte = line(xs, exact)
    for (starts, nbytes), seconds in zip(xs, exact, strict=True):
        assert starts * found_start + nbytes * found_per_byte == pytest.approx(seconds, rel=1e-6)
    blurred = [seconds * (1 + e) for seconds, e in zip(exact, noise, strict=False)]
    found_start, found_per_byte = line(xs, blurred)
    assert found_start >= 0
    assert found_per_byte >= 0
    for (starts, nbytes), seconds in zip(xs, exact, strict=True):
        guess = starts * found_start + nbytes * found_per_byte
        assert guess == pytest.approx(seconds, rel=0.15)


@given(
    name=st.sampled_from(sorted(MACHINES)),
    latency_s=st.floats(1e-6, 1e-4),
    extra_s=st.floats(0, 1e-3),
    rate=st.floats(1e7, 1e10),
)
def test_a_machine_is_found_again(name: str, latency_s: float, extra_s: float, rate: float) -> None:
    machine = MACHINES[name]
    speed = Speed(0.0, 1e-11, 1e-11)
    for level in {one.level for one in stages.stages(machine)}:
        true = Link(latency_s, rate, 1, "tuned", latency_s + extra_s)
        points = []
        for one in stages.stages(machine):
            for nbytes in stages.sizes(one) if one.level == level else ():
                point = Point(one, nbytes, stages.weigh(one, machine, nbytes, speed), 1.0)
                points.append(point._replace(seconds=point.expected_s(true)))
        found = crossing(points, 1, 2)
        assert found.together == 2
        assert found.link.bytes_per_s == pytest.approx(rate, rel=1e-3)
        assert found.link.latency_s == pytest.approx(latency_s, rel=2e-2)
        assert found.link.segment_s == pytest.approx(latency_s + extra_s, rel=2e-2)
        assert misfit(points, found.link) < 0.01
        row = level_rows(points, {level: found})[0]
        assert row["half_bytes"] == pytest.approx((latency_s + extra_s) * rate, rel=0.03)
        assert len(stage_rows(points, {level: found})) == len(points)


sizes = st.lists(st.integers(0, 1 << 24), min_size=1, max_size=9, unique=True).map(sorted)


@given(sizes, st.data())
def test_rules_repeat_what_was_found(known: list[int], data: st.DataObject) -> None:
    names = st.sampled_from(["ring", NATIVE, "recursive_doubling"])
    winners = [data.draw(names) for _ in known]
    made = rules({"allreduce": list(zip(known, winners, strict=True))})
    for nbytes, winner in zip(known, winners, strict=True):
        assert made.name("allreduce", nbytes) == winner
    assert made.name("allreduce", 2 * known[-1] + 1) is None
    assert read_rules(made.table()) == made
    assert made.name("bcast", 8) is None
    ladder = made.ladders["allreduce"]
    assert all(low[0] < high[0] and low[1] != high[1] for low, high in pairwise(ladder))


def test_operations_without_sizes_have_one_rule() -> None:
    assert asked(["barrier", "gatherv", "bcast"], [8, 16]) == [
        ("barrier", 0), ("gatherv", 4096), ("bcast", 8), ("bcast", 16),
    ]  # fmt: skip
    made = rules({"gatherv": [(1024, "linear")], "barrier": [(0, NATIVE)]})
    assert made.name("gatherv", 0) == made.name("gatherv", 1 << 30) == "linear"
    assert made.name("barrier", 0) == NATIVE


def test_segments_are_shown_where_there_is_a_hierarchy() -> None:
    machine = MACHINES["nodes"]
    fast = machine.with_links({name: Link(1e-9, 1e9, 1, "tuned", 1e-9) for name in machine.levels})
    rows = segment_rows(machine, fast)
    assert [row["segments"] for row in rows] == sorted(row["segments"] for row in rows)
    assert rows[-1]["segments"] == 16
    assert segment_rows(MACHINES["flat"], MACHINES["flat"]) == []
