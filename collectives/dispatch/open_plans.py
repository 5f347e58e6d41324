"""Plans whose input has any length: bound once, run with what a call brings."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.engine import interpreter
from closeranks.collectives.engine.bound_plan import Bound
from closeranks.collectives.engine.execution import Execution, execution
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.plans.identity import Identity
from closeranks.collectives.plans.plan_type import Plan

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service

Bytes = NDArray[np.uint8]

#: Plans that are kept bound, and bytes of their memory, beyond which plans are bound anew.
_MOST: Final = 16
_MOST_BYTES: Final = 256 << 20
#: Bytes that kernels must have written for their speed to be known.
_MEASURED_BYTES: Final = 1 << 18


def open_plans_of(service: Service) -> OpenPlans:
    """Return the open plans of a communicator, made at first use.  Local.

    `Service.move` drops them, because they are bound to its world.
    """
    found: OpenPlans = service.__dict__.setdefault("open_plans", OpenPlans(service))
    return found


class OpenPlans:
    """Bound plans of one communicator; the least recently used go first.

    Parameters
    ----------
    service : Service
        Of the communicator.

    Attributes
    ----------
    choices : dict
        Algorithms that were chosen, by kind of call.
    layouts : OrderedDict
        What calls keep of those before them, by kind of call.
    kernel_s_per_byte : float
        Time of kernels for a byte that they write, in the last runs; 0 before.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.choices: dict[Hashable, str] = {}
        self.kernel_s_per_byte = 0.0
        self._routes = 0
        self.layouts: OrderedDict[Hashable, Any] = OrderedDict()
        self._kept: OrderedDict[Hashable, Bound] = OrderedDict()

    def next_route(self) -> int:
        """Count a route that is made; the same on all ranks.  Local."""
        self._routes += 1
        return self._routes

    def run(self, key: Hashable, make: Callable[[], Plan], message: Bytes) -> Bytes:
        """Run a plan, wait, and return its output.

        Collective.

        Parameters
        ----------
        key : hashable
            Equal for equal plans.
        make : callable
            Gives the plan, if it is not bound yet.
        message : ndarray of uint8, contiguous
            The plan's input; free again when this returns.

        Returns
        -------
        ndarray of uint8
            The output, which nobody else holds.

        Raises
        ------
        PeerLost, PeerLate, Revoked
            As all calls.
        """
        service, world = self._service, self._service.world
        if world.compiled is None:
            interpreter.prepare(world, together=True)
        bound = self._kept.pop(key, None)
        if bound is None or bound.busy:
            bound = self._bound(make(), message)
        else:
            bound.attach(message, None)
        bound.lent = True
        ran = _ran(service, bound)
        self._kept[key] = bound
        while len(self._kept) > _MOST or (self._kept and self._held_bytes() > _MOST_BYTES):
            self._kept.popitem(last=False)
        service.counters.count_sent(_by_level(bound, ran))
        self._note_speed(ran)
        assert ran.output is not None
        return ran.output

    def _note_speed(self, ran: Execution) -> None:
        """Note how fast kernels were; short runs say nothing of it."""
        if ran.kernel_bytes >= _MEASURED_BYTES:
            found, before = ran.kernel_s / ran.kernel_bytes, self.kernel_s_per_byte
            self.kernel_s_per_byte = (found + before) / 2 if before else found

    def _held_bytes(self) -> int:
        return sum(bound.held_bytes() for bound in self._kept.values())

    def _bound(self, plan: Plan, message: Bytes) -> Bound:
        world = self._service.world
        return Bound(
            plan, world.rank, input=message, output=None, dtype=np.dtype(np.uint8), world=world
        )


def _ran(service: Service, bound: Bound) -> Execution:
    """Run a bound plan; from its number on the others wait for it."""
    world, driver, number, begun = service.world, engine(), None, None
    try:
        number = world.sequence()  # noted before Python looks for signals again
        begun = execution(bound, Identity(world.epoch, number), deadline=service.choice.deadline())
        driver.start(begun, background=False)
        driver.wait(begun)
    except BaseException:
        if begun is not None:
            driver.leave(begun)
        elif number is not None:
            world.revoke()
        raise
    return begun


def _by_level(bound: Bound, ran: Execution) -> dict[str, int]:
    """Return the bytes that a run has sent over each level."""
    topology, sent = bound.world.topology, dict[str, int]()
    for peer, nbytes in (*ran.sent.items(), *bound.static_sends()):
        level = topology.levels[topology.level_index(bound.rank, peer)]
        sent[level] = sent.get(level, 0) + nbytes
    return sent
