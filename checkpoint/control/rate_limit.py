"""How the parity of a save keeps out of the way of the program's own messages.

A program that talks has the wire first.  While it does, a segment of parity
goes out at a time, nothing ahead of it, and then nothing for nine times as
long as one takes: so parity has a tenth of the wire at most, and a save always
ends, after ten times as long at most.  A program that has been silent for a
second leaves the wire to it, and so does one that waits for the save.

What a segment takes is the shortest time that any has taken: in longer ones
this rank has waited for others, which rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: Of the wire, while the program talks.
SHARE: Final = 0.1
#: Seconds without a call after which a program is silent.
SILENT_S: Final = 1.0
#: Seconds between two looks whether anything has changed, and longest rest after a segment.
_LOOK_S, _LONGEST_S = 2e-3, 2.0


class Pace:
    """Rests between segments.

    Parameters
    ----------
    calls : callable
        Counts the calls that the program has made of its communicator.
    flying : callable
        Tells whether one of them is under way.
    is_awaited : callable
        Tells whether the program waits for the save.
    clock, sleep : callable
        What gives seconds, and lets them pass.
    """

    def __init__(
        self,
        calls: Callable[[], int],
        flying: Callable[[], bool],
        is_awaited: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._calls, self._flying, self._is_awaited = calls, flying, is_awaited
        self._clock, self._sleep = clock, sleep
        self._count, self._heard_s = calls(), -SILENT_S
        self._shortest_s = float("inf")

    def yields(self) -> bool:
        """Tell whether the program has the wire first.  Local; any thread."""
        now, count = self._clock(), self._calls()
        if self._flying() or count != self._count:
            self._count, self._heard_s = count, now
        return now - self._heard_s < SILENT_S and not self._is_awaited()

    def rest(self, took_s: float) -> None:
        """Leave the wire to the program for a while, if it talks.

        Local.

        Parameters
        ----------
        took_s : float
            What a segment took that went out alone.
        """
        self._shortest_s = min(self._shortest_s, took_s)
        rest_s = min((1 / SHARE - 1) * self._shortest_s, _LONGEST_S)
        end = self._clock() + rest_s
        while (left_s := end - self._clock()) > 0 and self.yields():
            self._sleep(min(left_s, _LOOK_S))
