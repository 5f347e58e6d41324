"""Which calls a communicator still takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from closeranks.comms.exit import forked_child
from closeranks.comms.mpi import ulfm
from closeranks.errors import Revoked

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.init_state import Family
    from closeranks.collectives.engine.epoch_world import World


class Gate:
    """Refuses the calls of one communicator that can have no right end.

    Local; so is all that it does.

    Parameters
    ----------
    family : Family
        The communicator's.
    opened : callable
        Gives the communicator's world, None as long as it has none.
    """

    def __init__(self, family: Family, opened: Callable[[], World | None]) -> None:
        self._family, self._opened = family, opened
        self._shut = ""

    def shut(self, why: str) -> None:
        """Refuse all calls from now on."""
        self._shut = why

    def refuse_shut(self, operation: str) -> None:
        """Raise `Revoked` if there are no more calls, see `shut`."""
        forked_child.refuse(operation)
        if self._shut:
            raise Revoked(operation, problem=self._shut, remedy="make a new one", for_good=True)

    def refuse(self, operation: str) -> None:
        """Raise if a call cannot be served, whatever its arguments are."""
        self.refuse_shut(operation)
        self._family.refuse(operation)
        self.refuse_late(operation)

    def refuse_late(self, operation: str) -> None:
        """Raise what has ended the world, see `is_over`."""
        forked_child.refuse(operation)
        if self.is_over():
            for world in self._worlds():
                world.check(operation)

    def is_over(self) -> bool:
        """Tell whether the library would mix a call up with one that was given up.

        It revokes nothing without ULFM: where somebody was late, a call is under
        way on some ranks that others will never make.  Calls before the one at which
        this rank hears of it are made by all, whatever has come to its ears.  Not so
        where a rank has given up: nobody knows which was its last.
        """
        if self._family.notices.notice is not None:
            return True
        return not ulfm.is_on() and any(
            world.revoked and world.attendance.told for world in self._worlds()
        )

    def _worlds(self) -> tuple[World, ...]:
        own = self._opened()
        return (self._family.world,) if own is None else (self._family.world, own)
