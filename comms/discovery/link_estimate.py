"""Bandwidths and links from samples; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median, median_high
from typing import NamedTuple

import numpy as np

from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology

#: A pair gets its own link if its bandwidth or latency is off by more.
_BANDWIDTH_FACTOR = 1.25
_IN_NODE_FACTOR = 2.0
_LATENCY_FACTOR = 3.0
#: All rails together are a whole number of times one rail, give or take.
_FRACTION_OF_RAIL = 0.15


class Sample(NamedTuple):
    """One measurement between two groups.

    Parameters
    ----------
    level : str
        The level of the groups.
    a, b : int
        The groups, the lower first.
    kind : str
        "latency" (value in s), "alone" (one rail, bytes/s) or "together" (one
        of all rails at once, bytes/s).
    rail : int
        Number of the members: the ``rail``-th of each group.
    sender : int
        The group that sent or began.
    value : float
        The measured value.
    """

    level: str
    a: int
    b: int
    kind: str
    rail: int
    sender: int
    value: float


def steady_rate(arrivals_s: Sequence[float], chunk_bytes: int, burst_bytes: int) -> float:
    """Return the rate at which a stream arrives once buffers are full.

    The first `burst_bytes` are left out: a token bucket lets them pass at
    any speed.

    Parameters
    ----------
    arrivals_s : sequence of float
        When each chunk had arrived, seconds, ascending; at least 2.
    chunk_bytes : int
        Bytes of a chunk.
    burst_bytes : int
        Bytes to leave out, at most half of all.

    Returns
    -------
    float
        Slope of the line through the remaining arrivals, bytes/s.
    """
    number = len(arrivals_s)
    start = min(-(-burst_bytes // chunk_bytes), number // 2, number - 2)
    times = np.asarray(arrivals_s[start:])
    order = np.arange(times.size)
    spread = times - times.mean()
    variance = float((spread**2).sum())
    if variance <= 0:
        return chunk_bytes / 1e-9
    return chunk_bytes * float((spread * (order - order.mean())).sum()) / variance


def average_rate(arrivals_s: Sequence[float], chunk_bytes: int, burst_bytes: int) -> float:
    """Return the mean rate of a stream, as if its burst took no time.

    Less exact than `steady_rate` where there was no burst, but of a short
    stream with stalls the better guess: it uses the whole span.

    Parameters
    ----------
    arrivals_s : sequence of float
        When each chunk had arrived, seconds, ascending; at least 2.
    chunk_bytes, burst_bytes : int
        As in `steady_rate`.

    Returns
    -------
    float
        Bytes/s.
    """
    total = (len(arrivals_s) - 1) * chunk_bytes
    counted = max(total - burst_bytes, total // 2)
    return counted / max(arrivals_s[-1] - arrivals_s[0], 1e-9)


def is_steady(arrivals_s: Sequence[float], chunk_bytes: int, burst_bytes: int) -> bool:
    """Say whether both halves of a stream after the burst are equally fast.

    Parameters
    ----------
    arrivals_s : sequence of float
        When each chunk had arrived, seconds, ascending.
    chunk_bytes, burst_bytes : int
        As in `steady_rate`.

    Returns
    -------
    bool
        Whether their rates differ by at most 5 %, of at least 4 chunks each.
    """
    rest = arrivals_s[-(-burst_bytes // chunk_bytes) :]
    if len(rest) < 8:
        return False
    middle = len(rest) // 2
    first, second = (steady_rate(part, chunk_bytes, 0) for part in (rest[:middle], rest[middle:]))
    return abs(first - second) <= 0.05 * max(first, second)


def with_samples(topology: Topology, samples: Iterable[Sample]) -> Topology:
    """Put measured links into a topology.

    A level's link is the median of its pairs; pairs that are clearly off get
    an exception.  Bandwidth is that of one rail alone, the slower direction;
    rails is how many times that all rails together reach.

    Parameters
    ----------
    topology : Topology
        The measured topology.
    samples : iterable of Sample
        Of all ranks, in any order.

    Returns
    -------
    Topology
        Links and exceptions with ``source="measured"``; levels without a
        sample keep their link.
    """
    measured = {pair: _pair_link(mine) for pair, mine in _by_pair(samples).items()}
    links = {}
    for name in {pair[0] for pair in measured}:
        links[name] = _typical([link for pair, link in measured.items() if pair[0] == name])
    exceptions = {
        pair: link
        for pair, link in measured.items()
        if _stands_out(
            link, links[pair[0]], _IN_NODE_FACTOR if pair[0] == "rank" else _BANDWIDTH_FACTOR
        )
    }
    kept = {pair: link for pair, link in topology.exceptions.items() if pair[0] not in links}
    return topology.with_links(links, {**kept, **exceptions})


def doubtful(samples: Iterable[Sample]) -> set[tuple[str, int, int]]:
    """Find pairs with a total rate that is no multiple of one rail's rate.

    Cards and cables come in whole numbers: 1.5 times is two of them in a
    disturbed moment more often than a shared link of that rate.

    Parameters
    ----------
    samples : iterable of Sample
        Of all ranks, in any order.

    Returns
    -------
    set of (str, int, int)
        Level and groups, the lower first, to be measured once more: the best of
        several repetitions counts.
    """
    times = {pair: _times(mine) for pair, mine in _by_pair(samples).items()}
    return {pair for pair, t in times.items() if abs(t - round(t)) > _FRACTION_OF_RAIL}


def _by_pair(samples: Iterable[Sample]) -> dict[tuple[str, int, int], list[Sample]]:
    pairs: dict[tuple[str, int, int], list[Sample]] = {}
    for sample in sorted(samples):
        pairs.setdefault((sample.level, sample.a, sample.b), []).append(sample)
    return pairs


def _pair_link(samples: Sequence[Sample]) -> Link:
    latencies = [sample.value for sample in samples if sample.kind == "latency"]
    alone = _rates(samples, "alone")
    return Link(
        min(latencies) if latencies else None,
        median(alone) if alone else None,
        max(1, round(_times(samples))),
        "measured",
    )


def _times(samples: Sequence[Sample]) -> float:
    """Return how many times one rail all of them reach, at most their number."""
    alone, together = _rates(samples, "alone"), _rates(samples, "together")
    if not (alone and together):
        return 1.0
    return min(sum(together) / median(alone), float(len(together)))


def _rates(samples: Sequence[Sample], kind: str) -> list[float]:
    """Return the rate of each rail: best repetition, slower direction."""
    best: dict[tuple[int, int], float] = {}
    for s in samples:
        if s.kind == kind:
            best[s.rail, s.sender] = max(s.value, best.get((s.rail, s.sender), 0.0))
    rails = {rail for rail, _ in best}
    return [min(v for (rail, _), v in best.items() if rail == mine) for mine in sorted(rails)]


def _typical(links: Sequence[Link]) -> Link:
    latencies = [link.latency_s for link in links if link.latency_s is not None]
    rates = [link.bytes_per_s for link in links if link.bytes_per_s is not None]
    rails = [link.rails for link in links if link.rails is not None]
    return Link(
        median(latencies) if latencies else None,
        median(rates) if rates else None,
        # the higher of two counts: a disturbance only slows a measurement
        median_high(rails) if rails else None,
        "measured",
    )


def _stands_out(link: Link, typical: Link, factor: float) -> bool:
    if link.rails != typical.rails:
        return True
    return _off(link.bytes_per_s, typical.bytes_per_s, factor) or _off(
        link.latency_s, typical.latency_s, _LATENCY_FACTOR
    )


def _off(value: float | None, typical: float | None, factor: float) -> bool:
    if value is None or typical is None:
        return False
    return not typical / factor <= value <= typical * factor
