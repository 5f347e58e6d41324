"""What can be said of measuring without a network: schedule and estimates."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from closeranks.comms.discovery.link_estimate import (
    Sample,
    average_rate,
    doubtful,
    is_steady,
    steady_rate,
    with_samples,
)
from closeranks.comms.discovery.link_survey import first_opponents, opponents, tournament
from closeranks.comms.topology.level_table import child_groups
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology


@pytest.mark.parametrize("number", range(1, 18))
def test_everybody_meets_everybody_once(number: int) -> None:
    rounds = tournament(number)
    met = [pair for one in rounds for pair in one]
    assert sorted(met) == list(combinations(range(number), 2))
    for one in rounds:
        players = [player for pair in one for player in pair]
        assert len(set(players)) == len(players)
    assert len(rounds) == number - 1 + number % 2


def test_pairs_of_a_round_lie_in_one_parent_and_share_no_group() -> None:
    site = [0, 0, 0, 1, 1, 2]
    topology = Topology.from_groups(("site", "node", "rank"), [site, range(6), range(6)])
    assert child_groups(topology, "node") == [[0, 1, 2], [3, 4], [5]]
    met = set()
    for row in opponents(topology, "node"):
        for group, other in enumerate(row.tolist()):
            if other >= 0:
                assert row[other] == group
                assert site[group] == site[other]
                met.add((min(group, other), max(group, other)))
    assert met == {(0, 1), (0, 2), (1, 2), (3, 4)}
    assert first_opponents(topology, "node").tolist() == [1, 0, -1, 4, 3, -1]
    assert first_opponents(topology, "site").tolist() == [1, 0, -1]


def shaped(rate: float, burst: int, chunk: int, number: int) -> list[float]:
    """Arrivals through a token bucket that starts full."""
    return [max(i * 1e-6, ((i + 1) * chunk - burst) / rate) for i in range(number)]


def test_the_burst_does_not_flatter() -> None:
    arrivals = shaped(25e6, 128 << 10, 32 << 10, 64)
    naive = 63 * (32 << 10) / (arrivals[-1] - arrivals[0])
    assert naive > 1.04 * 25e6
    assert steady_rate(arrivals, 32 << 10, 384 << 10) == pytest.approx(25e6, rel=1e-6)
    assert is_steady(arrivals, 32 << 10, 384 << 10)
    assert not is_steady(arrivals[:16], 32 << 10, 0)
    assert not is_steady(arrivals[:16], 32 << 10, 384 << 10)


def test_the_mean_of_a_short_stream_survives_stalls() -> None:
    arrivals = shaped(25e6, 128 << 10, 16 << 10, 24)
    assert average_rate(arrivals, 16 << 10, 128 << 10) == pytest.approx(25e6, rel=0.1)
    stalled = [max(arrival, 8e-3) for arrival in arrivals]
    stalled[0] = 0.0
    assert average_rate(stalled, 16 << 10, 128 << 10) == pytest.approx(25e6, rel=0.1)
    assert average_rate(arrivals[:4], 16 << 10, 128 << 10) > 0


def test_a_rate_needs_no_even_arrivals() -> None:
    jitter = np.random.default_rng(1).uniform(0, 2e-3, 200)
    arrivals = np.sort(np.arange(200) * 1e-3 + jitter).tolist()
    assert steady_rate(arrivals, 1000, 0) == pytest.approx(1e6, rel=0.02)
    assert steady_rate([1.0, 1.0], 1000, 0) > 0


def samples(pairs: dict[tuple[int, int], tuple[float, float]], rails: int = 2) -> list[Sample]:
    """What nodes of two ranks measure: rate of a rail alone, of all."""
    found = []
    for (a, b), (alone, together) in pairs.items():
        found.append(Sample("node", a, b, "latency", 0, a, 1e-5))
        for rail in range(rails):
            for sender in (a, b):
                found.append(Sample("node", a, b, "alone", rail, sender, alone))
                found.append(Sample("node", a, b, "together", rail, sender, together / rails))
    return found


def test_rails_are_what_all_reach_over_what_one_reaches() -> None:
    topology = Topology.regular(node=3, rank=2)
    pairs = dict.fromkeys(combinations(range(3), 2), (1e9, 2e9))
    two = with_samples(topology, samples(pairs))
    assert two.links["node"] == Link(1e-5, 1e9, 2, "measured")
    assert two.links["rank"] == topology.links["rank"]
    assert two.exceptions == {}
    pairs = dict.fromkeys(combinations(range(3), 2), (1e9, 1.02e9))
    assert with_samples(topology, samples(pairs)).links["node"].rails == 1


def test_of_two_disturbed_pairs_the_better_counts_and_both_are_looked_at_again() -> None:
    topology = Topology.regular(node=3, rank=2)
    pairs = {(0, 1): (1e9, 1.4e9), (0, 2): (1e9, 1.97e9)}
    assert with_samples(topology, samples(pairs)).links["node"].rails == 2
    assert doubtful(samples(pairs)) == {("node", 0, 1)}
    again = samples(pairs) + samples({(0, 1): (1e9, 1.9e9)})
    assert doubtful(again) == set()
    assert with_samples(topology, again).exceptions == {}
    # faster together than each alone is no third cable
    assert doubtful(samples({(0, 1): (1e9, 2.4e9)})) == set()


def test_a_bad_cable_gets_its_own_link() -> None:
    topology = Topology.regular(node=4, rank=2).with_links({}, {("node", 0, 1): Link(1, 1)})
    pairs = dict.fromkeys(combinations(range(4), 2), (1e9, 1e9)) | {(1, 3): (0.25e9, 0.25e9)}
    found = with_samples(topology, samples(pairs))
    assert found.links["node"].bytes_per_s == 1e9
    assert found.exceptions == {("node", 1, 3): Link(1e-5, 0.25e9, 1, "measured")}


def test_the_slower_direction_and_the_better_repetition_count() -> None:
    topology = Topology.regular(node=2, rank=1)
    rates = [(0, 3e9), (0, 5e9), (1, 2e9), (1, 4e9)]
    found = [Sample("node", 0, 1, "alone", 0, sender, rate) for sender, rate in rates]
    assert with_samples(topology, found).links["node"] == Link(None, 4e9, 1, "measured")
