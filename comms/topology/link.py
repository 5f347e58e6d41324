"""A link: the cost to cross one level, as latency, bandwidth and rails.

A link of level X describes traffic between two different X-groups inside one
parent group.  The link of level ``"rank"`` joins the ranks of one node, the
link of level ``"node"`` joins nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from closeranks.errors import TopologyError

_MOST = 1e18
#: A message of at least so many bytes is a segment of a large one.
SEGMENT_BYTES = 8 << 10
_KNOWN = {
    # level: (latency in s, bytes/s), used where nothing was measured or given
    "site": (50e-6, 1.25e9),
    "node": (5e-6, 12.5e9),
    "rank": (0.5e-6, 10e9),
}
_OUTWARDS = {"rank": "node", "node": "site", "site": "site"}


@dataclass(frozen=True, slots=True)
class Link:
    """Latency, bandwidth and rails of one level or one pair of groups.

    Parameters
    ----------
    latency_s : float or None
        Time of the smallest message, seconds; None is unknown.
    bytes_per_s : float or None
        Bandwidth of one rail in one direction, bytes/s; None is unknown.
    rails : int or None, default 1
        How many ranks of a group can send at that rate at once (its NICs);
        None is unknown.
    source : str, default "given"
        Where the numbers come from: "given", "default", "measured", "nic
        speed", "tuned".
    segment_s : float or None, default None
        Cost of a message of at least `SEGMENT_BYTES` beside its bytes, if
        measured, seconds; None is ``latency_s``.

    Raises
    ------
    TopologyError
        If a number is negative, not finite or of a wrong type.
    """

    latency_s: float | None
    bytes_per_s: float | None
    rails: int | None = 1
    source: str = "given"
    segment_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that no link has."""
        _check(self.latency_s, "latency_s", lowest_allowed=True)
        _check(self.bytes_per_s, "bytes_per_s", lowest_allowed=False)
        _check(self.segment_s, "segment_s", lowest_allowed=True)
        rails = self.rails
        if rails is not None and (type(rails) is not int or not 1 <= rails <= 4096):
            raise TopologyError("link", f"rails is {rails!r}", "give an int in 1..4096 or None")
        if not isinstance(self.source, str) or len(self.source) > 64:
            raise TopologyError("link", "source is no short text", "give at most 64 characters")

    def start_s(self, nbytes: int) -> float | None:
        """Return the cost of a message beside its bytes.

        Parameters
        ----------
        nbytes : int
            Its size.

        Returns
        -------
        float or None
            Seconds; None is unknown.
        """
        if nbytes < SEGMENT_BYTES or self.segment_s is None:
            return self.latency_s
        return self.segment_s

    def __str__(self) -> str:
        """Return one short phrase such as ``5 us, 12.5 GB/s, 2 rails``."""
        latency = "latency ?" if self.latency_s is None else f"{self.latency_s * 1e6:.3g} us"
        rate = "bandwidth ?" if self.bytes_per_s is None else f"{self.bytes_per_s / 1e9:.3g} GB/s"
        rails = "" if self.rails == 1 else f", {self.rails or '?'} rails"
        return f"{latency}, {rate}{rails}"


def _check(value: float | None, name: str, *, lowest_allowed: bool) -> None:
    if value is None:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= _MOST or (value == 0 and not lowest_allowed):
        bound = ">= 0" if lowest_allowed else "> 0"
        raise TopologyError("link", f"{name} is {value!r}", f"give a finite number {bound} or None")


def default_links(levels: Sequence[str]) -> dict[str, Link]:
    """Return a sensible link for every level of a machine without measurements.

    ``rank`` 0.5 us and 10 GB/s, ``node`` 5 us and 12.5 GB/s, ``site`` 50 us
    and 1.25 GB/s, one rail each.  A level of another name lies between the
    nearest two of these, and gets their geometric interpolation by position.
    Outside the outermost of these, the next one outwards is the far end.

    Parameters
    ----------
    levels : sequence of str
        Level names, outermost first.

    Returns
    -------
    dict of str to Link
        One link a level, ``source="default"``.
    """
    anchors = [(i, _KNOWN[name]) for i, name in enumerate(levels) if name in _KNOWN]
    outermost = next((name for name in levels if name in _KNOWN), "rank")
    if not anchors:
        anchors = [(len(levels), _KNOWN["rank"])]
    anchors.insert(0, (-1, _KNOWN[_OUTWARDS[outermost]]))
    return {name: _between(anchors, i) for i, name in enumerate(levels)}


def _between(anchors: Sequence[tuple[int, tuple[float, float]]], position: int) -> Link:
    outer = max((a for a in anchors if a[0] <= position), key=lambda a: a[0])
    inner = min((a for a in anchors if a[0] >= position), key=lambda a: a[0], default=outer)
    span = inner[0] - outer[0]
    share = (position - outer[0]) / span if span else 0.0
    latency, rate = (
        o * (i / o) ** share if o != i else o for o, i in zip(outer[1], inner[1], strict=True)
    )
    return Link(latency, rate, 1, "default")
