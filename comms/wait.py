"""The one way to wait: spin, then yield, then sleep.

Nothing else in the package loops until an event.  If a node has more ranks
than cores, spinning keeps the awaited rank from running (2 ms become 50).
The spin length is zero there.

Long waits use long sleeps.  On Linux 6.18, a session that falls asleep some
thousand times a second beside yielding processes can block all others for
minutes.  Kernel threads are blocked too, and with them a dying process that
needs a lock of such a thread.  All sleeps of a node count.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: Rounds of looking before the first yield, where every rank has a core.
SPINS = 2000
#: Rounds that yield before the first sleep: with cores for all, and without.
YIELDS, CROWDED_YIELDS = 2000, 200
#: Shortest and longest sleep, in seconds.
SHORTEST_S, LONGEST_S = 20e-6, 2e-3
#: Up to this sleeps double, in seconds; from then on they are `SHARE` of the time waited.
BRIEF_S, SHARE = 200e-6, 1 / 32
#: How long a thread waits for the GIL before it asks for it, see `prompt_switches`.
SWITCH_S = 1e-4
#: PR_SET_TIMERSLACK of prctl(2), which takes nanoseconds.
_TIMER_SLACK = 29


class Deadline:
    """A span of time that started when this was made.

    Parameters
    ----------
    limit_s : float
        Its length in seconds, at least 0.

    Attributes
    ----------
    limit_s : float
        As given.
    """

    __slots__ = ("_end", "limit_s")

    def __init__(self, limit_s: float) -> None:
        self.limit_s = float(limit_s)
        self._end = time.monotonic() + self.limit_s

    def restart(self) -> None:
        """Let the span start now.  Local."""
        self._end = time.monotonic() + self.limit_s

    @property
    def expired(self) -> bool:
        """Whether the span is over."""
        return time.monotonic() >= self._end

    @property
    def waited_s(self) -> float:
        """Seconds since it started."""
        return time.monotonic() - self._end + self.limit_s


def wake_promptly() -> None:
    """Let the sleeps of this thread end within a microsecond, not 50.  Local.

    Linux lets a sleep last longer, to wake a processor less often.
    """
    import ctypes

    with suppress(AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(_TIMER_SLACK, ctypes.c_ulong(1000), 0, 0, 0)


@contextmanager
def prompt_switches() -> Iterator[None]:
    """Let a thread that wants the GIL have it after 0.1 ms, not 5.  Local.

    For a thread that needs it seldom and briefly, beside one that computes in
    Python.  A program's own interval stays if it is shorter, or set meanwhile.
    """
    before = sys.getswitchinterval()
    if before <= SWITCH_S:
        yield
        return
    sys.setswitchinterval(SWITCH_S)
    ours = sys.getswitchinterval()
    try:
        yield
    finally:
        if sys.getswitchinterval() == ours:
            sys.setswitchinterval(before)


class _Patience:
    """How long this process spins and yields, and why; set by `settle`."""

    spins = SPINS
    yields = YIELDS
    ranks_per_core = 1.0


def settle(ranks_on_node: int, cores: int) -> bool:
    """Tell the wait how many ranks share this node's cores.

    Local.  Called whenever a communicator opens; the last word counts.

    Parameters
    ----------
    ranks_on_node : int
        Ranks on this node, this one included.
    cores : int
        Cores that these ranks have together, see
        `closeranks.comms.discovery.node_hardware.cores_of`.

    Returns
    -------
    bool
        Whether ranks outnumber cores, so that no rank spins.
    """
    crowded = ranks_on_node > cores
    _Patience.spins = 0 if crowded else SPINS
    _Patience.yields = CROWDED_YIELDS if crowded else YIELDS
    _Patience.ranks_per_core = ranks_on_node / cores
    return crowded


def is_crowded() -> bool:
    """Return whether ranks outnumber cores, by the last `settle`.  Local."""
    return _Patience.spins == 0


def crowding() -> float:
    """Return how many ranks share a core, at least 1, see `settle`.  Local."""
    return max(1.0, _Patience.ranks_per_core)


def wait(
    ready: Callable[[], bool],
    *,
    progress: Callable[[], bool] | None = None,
    abort: Callable[[], None] | None = None,
    deadline: Deadline | None = None,
    polite: bool = False,
    longest_s: float = LONGEST_S,
    doze: Callable[[float], bool | None] | None = None,
) -> bool:
    """Wait until ``ready()`` holds.

    Local.  A round calls ``progress``, ``ready`` and ``abort`` in this order.

    Parameters
    ----------
    ready : callable
        Whether the wait is over; cheap.
    progress : callable, optional
        Drives the awaited work; True if anything moved, which makes the wait spin
        again.
    abort : callable, optional
        Raises if the wait is in vain (the abort word of a world).
    deadline : Deadline, optional
        When to give up.
    polite : bool
        Never spin: another thread of this process has better use for the core.
    longest_s : float
        Longest sleep, in seconds.
    doze : callable, optional
        Sleeps for so many seconds, or less; True if there is news, and sleeps are
        to be short again.

    Returns
    -------
    bool
        True as soon as ``ready()`` held, False once the deadline had passed.
    """
    spins = 0 if polite else _Patience.spins
    still = spins + (CROWDED_YIELDS if polite else _Patience.yields)
    idle, pause_s = 0, SHORTEST_S
    while True:
        if progress is not None and progress():
            idle, pause_s = 0, SHORTEST_S
        if ready():
            return True
        if abort is not None:
            abort()
        if deadline is not None and deadline.expired:
            return False
        idle += 1
        if idle > still:
            if (doze or time.sleep)(pause_s):
                idle, pause_s = 0, SHORTEST_S
            else:
                pause_s = longer(pause_s, longest_s)
        elif idle > spins:
            os.sched_yield()


def longer(pause_s: float, longest_s: float = LONGEST_S) -> float:
    """Return how long to sleep after a sleep that was in vain.

    Parameters
    ----------
    pause_s : float
        Length of that, in seconds.
    longest_s : float
        Of the longest.

    Returns
    -------
    float
        At most ``longest_s``.
    """
    if pause_s < BRIEF_S:
        return min(2 * pause_s, BRIEF_S)
    return min((1 + SHARE) * pause_s, longest_s)
