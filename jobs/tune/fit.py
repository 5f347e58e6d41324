"""From times of stages to numbers of levels; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from closeranks.collectives.selection.tuning_table import Crossing
from closeranks.comms.topology.link import SEGMENT_BYTES, Link
from closeranks.jobs.tune.stage_plans import Stage, Weight

#: What is faster than this was not resolved.
_LEAST_S, _LEAST_S_PER_BYTE = 1e-9, 1e-13


class Point(NamedTuple):
    """One measurement.

    Attributes
    ----------
    stage : Stage
        What was measured.
    nbytes : int
        Bytes of the segment.
    weight : Weight
        What it takes on an unknown link.
    seconds : float
        What it took, on the slowest rank.
    """

    stage: Stage
    nbytes: int
    weight: Weight
    seconds: float

    @property
    def wire_s(self) -> float:
        """What it took without adding and copying, a thousandth of it at least."""
        return max(self.seconds - self.weight.fixed_s, self.seconds * 1e-3)

    @property
    def is_small(self) -> bool:
        """Whether its messages are no segments."""
        return self.stage.message_bytes(self.nbytes) < SEGMENT_BYTES

    def expected_s(self, link: Link) -> float:
        """Give what it should take on a link."""
        start_s = link.start_s(self.stage.message_bytes(self.nbytes)) or 0.0
        on_wire = self.weight.nbytes / (link.bytes_per_s or float("inf"))
        return self.weight.starts * start_s + on_wire + self.weight.fixed_s


def line(xs: Sequence[tuple[float, float]], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit ``seconds = starts * a + nbytes * b`` with ``a, b >= 0``.

    Parameters
    ----------
    xs : sequence of (float, float)
        Starts and bytes of each measurement.
    seconds : sequence of float
        What each took, above 0.

    Returns
    -------
    tuple of (float, float)
        ``a`` and ``b`` whose relative errors have the least squares.
    """
    rows = np.asarray(xs, dtype=float) / np.asarray(seconds, dtype=float)[:, None]
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    rows, ones = rows / scale, np.ones(len(rows))
    best, best_error = (0.0, 0.0), float("inf")
    for columns in ([0, 1], [0], [1]):
        found, *_ = np.linalg.lstsq(rows[:, columns], ones, rcond=None)
        if (found < 0).any():
            continue
        error = float(((rows[:, columns] @ found - 1) ** 2).sum())
        if error < best_error:
            both = np.zeros(2)
            both[columns] = found
            best, best_error = (float(both[0] / scale[0]), float(both[1] / scale[1])), error
    return best


def crossing(points: Sequence[Point], rails: int | None, together: int) -> Crossing:
    """Find what crossing a level costs from the times of its stages.

    Parameters
    ----------
    points : sequence of Point
        All of one level, some of segments and some of small messages.
    rails : int or None
        Of the level's link.
    together : int
        How many ranks shared it, see `Crossing`.

    Returns
    -------
    Crossing
        Bandwidth and start of a message at the size of segments, latency at
        the small size.
    """
    large = [point for point in points if not point.is_small]
    weights = [(point.weight.starts, point.weight.nbytes) for point in large]
    start_s, s_per_byte = line(weights, [point.wire_s for point in large])
    s_per_byte = max(s_per_byte, _LEAST_S_PER_BYTE)
    latencies = [
        (point.wire_s - point.weight.nbytes * s_per_byte) / point.weight.starts
        for point in points
        if point.is_small
    ]
    latency_s = max(min(latencies, default=start_s), _LEAST_S)
    # A start of 0 is one that the noise has hidden.
    link = Link(latency_s, 1 / s_per_byte, rails, "tuned", start_s or latency_s)
    return Crossing(link, together)


def misfit(points: Sequence[Point], link: Link) -> float:
    """Say how far the times of segments are from what a link explains.

    Parameters
    ----------
    points : sequence of Point
        All of one level.
    link : Link
        What was found.

    Returns
    -------
    float
        Largest relative error.
    """
    large = [point for point in points if not point.is_small]
    return max(abs(point.expected_s(link) / point.seconds - 1) for point in large)
