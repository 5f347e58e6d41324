"""Calls on which faults are wanted: `Service` with the points of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from closeranks.collectives.dispatch.dispatch import Service
from closeranks.collectives.engine.execution import Execution
from closeranks.collectives.plans.identity import Identity
from closeranks.collectives.plans.schedule import Kind
from closeranks.collectives.selection.call_options import deadline

if TYPE_CHECKING:
    from closeranks.collectives.arguments.collective_call import CollectiveCall
    from closeranks.collectives.dispatch.request import Request
    from closeranks.collectives.engine.bound_plan import Bound
    from closeranks.collectives.engine.fault_injection import Injection
    from closeranks.comms.wait import Deadline


class Faulty(Service):
    """Serves a communicator opened with ``faults=True``, see `Service`."""

    @property
    def _faults(self) -> Injection:
        faults = self.family.faults
        assert faults is not None, "who makes this has looked"
        return faults

    def block(self, operation: str, algorithm: str, *arguments: Any) -> None:
        """Serve a blocking call, see `Service.block`."""
        self._faults.slow_down()
        self._faults.reach(operation)
        super().block(operation, algorithm, *arguments)
        self._faults.reach(f"{operation}:end")
        self._faults.leave()

    def begin(self, operation: str, algorithm: str, *arguments: Any) -> Request:
        """Start an ``I`` call, see `Service.begin`."""
        self._faults.slow_down()
        self._faults.reach(operation)
        request = super().begin(operation, algorithm, *arguments)
        self._faults.leave()
        return request

    def _bound(self, demand: CollectiveCall, name: str, bound: Bound | None) -> Bound:
        if bound is None and self._faults.awaits(f"{demand.operation}:rail"):
            bound, sent = self.bindings.take(demand, name, steps=True)
            self.counters.count_sent(sent)
            return bound
        return super()._bound(demand, name, bound)

    def _execution(self, bound: Bound, identity: Identity) -> Execution:
        if self._faults.awaits(f"{bound.plan.problem.operation}:rail"):
            return _Watched(bound, identity, deadline(self.family), self._faults)
        return super()._execution(bound, identity)


class _Watched(Execution):
    """A run that meets a fault when its first message to another node is through."""

    __slots__ = ("_faults", "_here")

    def __init__(
        self, bound: Bound, identity: Identity, deadline: Deadline | None, faults: Injection
    ) -> None:
        super().__init__(bound, identity, deadline=deadline)
        self._faults, self._here = faults, frozenset(bound.world.node_ranks)

    def _finish(self, step: int) -> None:
        moves = self.bound.kinds[step] in (Kind.SEND, Kind.RECEIVE)
        if moves and self.bound.peers[step] not in self._here:
            self._faults.reach(f"{self.operation}:rail")  # before: it may have been the last
        super()._finish(step)
