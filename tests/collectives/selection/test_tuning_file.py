"""Tables for `init`: rules, what `closeranks tune` writes, and hostile files."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.collectives.analysis.cost_model import Speed, cost
from closeranks.collectives.arguments.call_key import Agreed, size_class
from closeranks.collectives.builders.patterns.segments import LEAST_BYTES, segments
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.selection.call_options import NATIVE
from closeranks.collectives.selection.chooser import Chooser
from closeranks.collectives.selection.planner import plan
from closeranks.collectives.selection.pricing import NativeModel
from closeranks.collectives.selection.rules import Rules, read_rules
from closeranks.collectives.selection.tuning_table import (
    MOST_BYTES,
    Crossing,
    Origin,
    Tuned,
    read_tuned,
    shape,
    tuning,
)
from closeranks.comms.topology.link import SEGMENT_BYTES, Link
from closeranks.comms.topology.topology import Topology
from closeranks.errors import UsageError

CLUSTER = Topology.regular(node=4, rank=2)
LINK = Link(1e-5, 1e9, 1, "tuned", 4e-5)


def made_on(topology: Topology, **changes: Any) -> Tuned:
    """A table as if it had been made on the ranks of a topology."""
    origin = Origin("Open MPI v5", "a processor", shape(topology), topology.size, 4)
    levels = {"rank": Crossing(replace(LINK, bytes_per_s=5e9), 2), "node": Crossing(LINK, 2)}
    winners = Rules({"allreduce": ((4096.0, NATIVE), (1 << 20, "ring"))})
    made = Tuned(origin, levels, Speed(0.0, 1e-10, 1e-10), NativeModel(1e-5, 1e-9), winners)
    return replace(made, **changes)


seconds, ranks, texts = st.floats(0, 1e3), st.integers(1, 1 << 20), st.text(max_size=40)
links = st.builds(
    Link, seconds, st.floats(1, 1e12), st.integers(1, 64), st.just("tuned"), st.none() | seconds
)


@given(
    st.builds(Origin, texts, texts, texts, ranks, ranks),
    st.dictionaries(st.sampled_from(["rank", "node", "site"]),
                    st.builds(Crossing, links, st.integers(1, 1 << 20))),
    st.builds(Speed, seconds, seconds, seconds),
    st.none() | st.builds(NativeModel, seconds, seconds),
)  # fmt: skip
def test_a_table_is_read_as_it_was_written(
    origin: Origin,
    levels: dict[str, Crossing],
    speed: Speed,
    native: NativeModel | None,
) -> None:
    made = Tuned(origin, levels, speed, native, Rules({"bcast": ((8.0, NATIVE), (9.0, "auto"))}))
    assert read_tuned(json.loads(json.dumps(made.table()))) == made


def test_a_level_holds_where_as_many_ranks_share_it() -> None:
    table = made_on(CLUSTER)
    assert table.within(CLUSTER) == table
    assert table.remarks(CLUSTER) == []
    more = Topology.regular(node=16, rank=2)
    assert set(table.within(more).levels) == {"rank", "node"}
    assert not table.within(more).winners.ladders
    assert table.within(more).native is None
    assert table.remarks(more) == [
        "its algorithms are those of 8 ranks on 4 nodes, placed otherwise"
    ]
    wider = Topology.regular(node=4, rank=8)
    assert not table.within(wider).levels
    assert table.remarks(wider)[0] == "level 'rank' is shared by 8 ranks here, by 2 there"
    assert "level 'site' is not in it" in table.remarks(Topology.regular(site=2, node=2, rank=2))
    turned = Topology.from_groups(("node", "rank"), [[0, 1, 2, 3] * 2, list(range(8))])
    assert not table.within(turned).winners.ladders


def test_another_library_or_processor_is_told_apart() -> None:
    here = Origin("Open MPI v5", "a processor", "")
    assert here.objection(here._replace(shape="other", ranks=7)) is None
    assert "MPICH" in str(here.objection(here._replace(library="MPICH 4")))
    assert "that one" in str(here._replace(processor="that one").objection(here))


def broken(*path: Any, value: Any) -> dict[str, Any]:
    """A table with one member replaced, or taken away."""
    table: Any = made_on(CLUSTER).table()
    inner = table
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return dict(table)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (broken("version", value=2), "version 2, this closeranks reads up to 1"),
        (broken("version", value=0), "version of the table is 0"),
        (broken("format", value="closeranks topology"), "its format is not"),
        (broken("more", value=1), "unknown key 'more'"),
        (broken("levels", value=[{}] * 17), "17 entries"),
        (broken("levels", 0, "together", value=0), "together of a level is 0"),
        (broken("levels", 0, "link", "bytes_per_s", value=-1), "bytes_per_s is -1"),
        (broken("levels", 0, "link", "segment_s", value="soon"), "'soon'"),
        (broken("levels", 1, "name", value="rank"), "stands twice"),
        (broken("speed", "step_s", value=None), "step_s of speed is None"),
        (broken("speed", "step_s", value=True), "'True'"),
        (broken("native", "latency_s", value=1e9), "latency_s of native"),
        (broken("origin", "processor", value="x" * 300), "300 characters"),
        (broken("origin", "ranks", value=1 << 40), "ranks of the origin"),
        (broken("algorithms", "allreduce", value="rong"), "no algorithm 'rong' of allreduce"),
        (broken("algorithms", "allreduce", value=[{}] * 257), "257 rules"),
        (broken("algorithms", value=[]), "algorithms of the table"),
    ],
)
def test_a_table_that_is_none_is_refused(table: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        tuning(table)


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({"allreduce": 3}, "a name, or a list"),
        ({"allreduce": [{"up_to_bytes": float("nan"), "algorithm": "ring"}]}, "0 or more"),
        ({"allreduce": [{"algorithm": "ring"}, {"up_to_bytes": 8, "algorithm": "ring"}]}, "ascend"),
        ({"allreduce": [{"algorithm": 1}]}, "a name"),
        ({"sum": "ring"}, "no operation 'sum'"),
    ],
)
def test_rules_that_are_none_are_refused(rules: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read_rules(rules)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"[" * 60_000, "too deep"),
        (b'{"allreduce": "ring", "allreduce": "native"}', "stands twice"),
        (b'{"allreduce": [{"up_to_bytes": NaN, "algorithm": "ring"}]}', "NaN is no number"),
        (b'{"allreduce": [{"up_to_bytes": ' + b"9" * 99 + b"}]}", "99 digits"),
        (b"[" + b"1," * 70_000 + b"1]", "values"),
        (b"[]", "holds no mapping"),
        (b"\xff\xfe", "cannot read"),
        (b" " * (MOST_BYTES + 1), "larger than"),
    ],
)
def test_a_hostile_file_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=text) as caught:
        tuning(path)
    assert "table.json" in str(caught.value)


@pytest.mark.timeout(10)
def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, tmp_path / "gone"):
        with pytest.raises(UsageError, match=r"no plain file|cannot read"):
            tuning(path)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(made_on(CLUSTER).table()))
    assert tuning(path) == made_on(CLUSTER)
    path.write_text('{"allreduce": "ring"}')
    found = tuning(path)
    assert isinstance(found, Rules)
    assert found.name("allreduce", 1 << 40) == "ring"
    assert tuning(None) == Rules()


def test_winners_are_not_tried_again() -> None:
    winners = made_on(CLUSTER).winners
    chooser = Chooser(CLUSTER, native=NativeModel(1e-5, 1e-9), trials=True, winners=winners)
    small, large = (chooser.choose(Agreed("allreduce", size_class(n))) for n in (4096, 1 << 18))
    assert (small.algorithm, small.trial) == (NATIVE, None)
    assert (large.algorithm, large.trial, large.source) == ("ring", None, "table")
    assert len(large.predictions) > 2
    chooser.try_all()
    assert chooser.choose(Agreed("allreduce", size_class(1 << 24))).is_tried, "no rule there"
    only_plans = Agreed("allreduce", size_class(8), native=False)
    assert chooser.choose(only_plans).algorithm != NATIVE, "the library cannot"
    long = chooser.choose(Agreed("allreduce", size_class(4096)))
    assert long.unattended() == NATIVE


def test_measured_starts_decide_the_segments() -> None:
    problem = Problem("allreduce", CLUSTER, count=1 << 22)
    guessed = segments(problem, 16)

    def number(start_s: float) -> int:
        inside = Link(1e-6, 5e9, 1, "tuned", 1e-6)
        links = {"rank": inside, "node": Link(1e-6, 1e9, 2, "tuned", start_s)}
        return segments(replace(problem, topology=CLUSTER.with_links(links)), 16)

    assert number(1e-7) == 16
    assert number(1e-1) == 1
    counts = [number(10.0**-power) for power in range(1, 8)]
    assert counts == sorted(counts)
    assert len(set(counts)) > 2
    assert guessed >= 1


def test_measured_tiers_may_have_segments_below_the_guess() -> None:
    links = {"rank": Link(1e-9, 5e9, 1, "tuned", 1e-9), "node": Link(1e-9, 1e9, 2, "tuned", 1e-9)}
    problem = Problem("allreduce", CLUSTER, count=(8 * SEGMENT_BYTES * 8) // 4)
    assert problem.count * 4 // LEAST_BYTES < 16
    assert segments(replace(problem, topology=CLUSTER.with_links(links)), 16) == 8


def test_the_price_takes_the_start_of_large_messages() -> None:
    quick = CLUSTER.with_links({"node": Link(1e-6, 1e9, 1, "tuned", 1e-6)})
    slow = CLUSTER.with_links({"node": Link(1e-6, 1e9, 1, "tuned", 1e-3)})
    for nbytes, is_dearer in ((1024, False), (1 << 20, True)):
        prices = [
            cost(plan("allreduce", machine, algorithm="ring", nbytes=nbytes)).seconds
            for machine in (quick, slow)
        ]
        assert (prices[1] > prices[0]) == is_dearer


def test_newcomers_choose_by_the_table_too() -> None:
    winners = Rules({"allreduce": ((1 << 20, "ring"),)})
    chooser = Chooser(CLUSTER, native=NativeModel(1e-5, 1e-9), trials=True, winners=winners)
    assert Chooser(CLUSTER, **chooser.numbers).winners == winners
