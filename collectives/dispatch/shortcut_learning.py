"""What shortcuts learn from calls that were made the long way.

All ranks learn that a size class is the library's at the same call: the first
one that is served by a new answer of the chooser, which no rank's shortcut
takes.  A later call may be read on one rank and take a shortcut on another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from closeranks.collectives.dispatch.request import DROPPED, Request, origin_of
from closeranks.collectives.engine import interpreter
from closeranks.collectives.fastpath.shm_call import ShmCalls
from closeranks.collectives.fastpath.shortcut import BEGINS, class_of_call, is_possible
from closeranks.collectives.fastpath.shortcut_record import Begun
from closeranks.collectives.selection.call_options import AUTO, NATIVE, SHARED

if TYPE_CHECKING:
    from closeranks.collectives.arguments.call_key import Agreed
    from closeranks.collectives.arguments.collective_call import CollectiveCall
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.init_state import Family
    from closeranks.collectives.fastpath.shm_call import ShmCall
    from closeranks.collectives.fastpath.shortcut import Shortcuts
    from closeranks.collectives.selection.choice import Choice
    from closeranks.collectives.selection.chooser import Chooser


class ShortcutLearning:
    """Tells the shortcuts of a communicator which calls they may serve.

    Parameters
    ----------
    family : Family
        Options of the communicator.
    chooser : Chooser
        Knows how long a choice holds.
    shortcuts : Shortcuts
        Of the communicator.
    open_world : callable
        Gives the communicator's world; collective at first use.
    """

    def __init__(
        self,
        family: Family,
        chooser: Chooser,
        shortcuts: Shortcuts,
        open_world: Callable[[], World],
    ) -> None:
        self._family, self._chooser, self._shortcuts = family, chooser, shortcuts
        self._chosen, self._asked = (ShmCalls(open_world) for _ in "ab")  # an entry is in one
        self._learnt: dict[tuple[str, int], Choice] = {}

    def remember(
        self,
        demand: CollectiveCall,
        name: str,
        algorithm: str = AUTO,
        choice: Choice | None = None,
    ) -> None:
        """Let the next call of this kind take a short way.

        Parameters
        ----------
        demand : CollectiveCall
            A call that was served.
        name, algorithm : str
            By what, and what was asked for.
        choice : Choice, optional
            Of the chooser: as long as that holds.
        """
        operation = demand.operation
        if choice is not None and choice.algorithm != name:
            return  # it could not serve this call, and serves others of its class
        if name == NATIVE and choice is not None:
            size = demand.agreed.size_class
            if self._learnt.get((operation, size)) is choice:  # there is nothing new
                if operation not in self._shortcuts.probes:
                    self.miss(operation)
                return
        known, size_class = self._shortcuts.asked_for(algorithm), class_of_call(demand)
        straight = self._family.straight and demand.divisor() == 1
        if known is None or size_class is None or not straight:
            return
        agreed = demand.agreed
        if self._family.tuning.divides(operation, size_class):
            return
        if algorithm == AUTO and not agreed.commutative:
            return  # sizes are known without looking at the op
        if name == NATIVE and choice is not None:
            self.learn_library(agreed, choice)
        elif name == NATIVE:
            known.learn(operation, [size_class], counted=False)
            interpreter.miss()
        elif name == SHARED and (way := self._ways(algorithm).of(demand)) is not None:
            known.learn_near(operation, size_class, way, counted=choice is not None)

    def learn_library(self, agreed: Agreed, choice: Choice) -> None:
        """Let all sizes take shortcuts that are the library's for now.  Local.

        Parameters
        ----------
        agreed : Agreed
            Of a call that was.
        choice : Choice
            New; the same on all ranks.
        """
        if self._learnt.get((agreed.operation, agreed.size_class)) is not choice:
            self._learnt[agreed.operation, agreed.size_class] = choice
            self._shortcuts.learn(agreed.operation, self._chooser.library_classes(agreed))
        interpreter.miss()

    def remember_begun(self, demand: CollectiveCall, service: Service) -> None:
        """Let the next call of this kind that returns a request take a short way.

        Local; on all ranks at the same call.

        Parameters
        ----------
        demand : CollectiveCall
            A call that the library serves, as all of its size class.
        service : Service
            Of the communicator.
        """
        size, operation = class_of_call(demand), demand.operation
        if size is None or not self._family.straight or demand.divisor() != 1:
            return
        if self._shortcuts.is_library(operation, size, BEGINS):
            return
        if not self._family.tuning.divides(operation, size):
            origin, name = origin_of(service, operation), BEGINS + operation
            begun = Begun(Request, origin, service.outstanding.begun, DROPPED, name)
            self._shortcuts.learn_begun(operation, size, begun)

    def miss(self, operation: str) -> None:
        """Note a call of an operation that has no shortcut yet.  Local."""
        interpreter.miss()
        if is_possible():  # compiled code has come meanwhile
            self._shortcuts.learn(operation, ())

    def way_of(self, demand: CollectiveCall) -> ShmCall | None:
        """Give the kernel that runs a call of ours alone, or None.  Local."""
        return self._chosen.of(demand)

    def quick_of(self, demand: CollectiveCall, way: ShmCall) -> Callable[..., object]:
        """Give what runs a kernel at once, see `Shortcuts.quick`.  Local."""
        return self._shortcuts.quick(demand.operation, class_of_call(demand), way)

    def _ways(self, algorithm: str) -> ShmCalls:
        return self._chosen if algorithm == AUTO else self._asked
