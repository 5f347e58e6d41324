"""The short ways of a call: straight to the library, or into node memory.

A call whose size is known to go to the library goes straight to it. A plain
call then costs what mpi4py costs and a look into a dictionary.  One that a
kernel serves alone goes straight to that, see `closeranks.collectives.near`.
What neither can take, or mpi4py refuses, takes the long way, where errors are
explained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from closeranks.collectives.problem import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from closeranks.collectives.near import Near
    from closeranks.collectives.service import Service
    from closeranks.comms.glance import Glance

NOTHING: Mapping[str, dict[int, int]] = {name: {} for name in OPERATIONS}
NOTHING_NEAR: Mapping[str, dict[int, Near]] = {name: {} for name in OPERATIONS}


class Straight(MPI.Intracomm):
    """What the short way needs to know.

    In slots, for where ranks share a core each piece of memory that a call
    looks at has left the cache since the call before.
    """

    __slots__ = ("_members", "_near", "_place", "_quick", "_received", "_sent", "_service")

    _service: Service
    #: Operation -> bytes of a buffer -> calls that went straight to the library;
    #: nothing where every call takes the long way.
    _quick: Mapping[str, dict[int, int]]
    #: The same for calls that go straight into node memory.
    _near: Mapping[str, dict[int, Near]]
    _members: int
    _place: int
    _sent: Glance
    _received: Glance

    def _go_straight(self, allowed: bool) -> None:
        """Allow known calls to go straight to the library, or forbid it."""
        self._quick = self._service.counters.quick if allowed else NOTHING
        self._near = self._service.counters.near if allowed else NOTHING_NEAR
