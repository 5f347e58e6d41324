"""Calls of a race: they are timed, and the ranks meet before and after each.

`closeranks.collectives.selection.trial` says whose turn it is, and who wins.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from closeranks.collectives.arguments.native_handover import agreed_max
from closeranks.collectives.selection.call_options import AUTO, NATIVE, SHARED
from closeranks.comms.exit import signal_handlers

if TYPE_CHECKING:
    from closeranks.collectives.arguments.call_key import Agreed
    from closeranks.collectives.arguments.collective_call import CollectiveCall
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.selection.choice import Choice
    from closeranks.collectives.selection.trial import Trial


class RaceCalls:
    """Makes the calls of races on one communicator.

    Parameters
    ----------
    service : Service
        Of the communicator.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def serve(
        self,
        demand: CollectiveCall,
        name: str,
        choice: Choice,
        again: Callable[[], CollectiveCall],
    ) -> None:
        """Do a call that was read, and take its time.

        Parameters
        ----------
        demand : CollectiveCall
            The call.
        name : str
            The algorithm.
        choice : Choice
            With the trial.
        again : callable
            Reads the call.
        """
        signal_handlers.defer_handlers()  # what is done beside the call waits for all
        service = self._service
        timed = service.choice.is_timed()
        serve = service.prepared(demand, name, timed=timed, races=True)
        if not timed:
            self.meet()  # else it pays for what the last one left undone
        began = time.perf_counter()
        if name not in (NATIVE, SHARED):
            service.chooser.settled(again().agreed)  # as later calls, on cores that ranks share
        service.run(name, serve)
        ended_s = time.perf_counter()
        if not timed:
            self.meet()  # and for what ranks do that need not wait
        agreed, trial = demand.agreed, choice.trial
        assert trial is not None
        trial.record(service.chooser.scaled(agreed, demand.nbytes, ended_s - began))
        if trial.is_full:
            self._conclude(agreed, trial)

    def serve_known(
        self,
        agreed: Agreed,
        choice: Choice,
        scale: float,
        call: Callable[..., object],
        arguments: tuple[Any, ...],
    ) -> None:
        """Do a call that is known, as `serve`.

        Parameters
        ----------
        agreed : Agreed
            What all ranks agree on.
        choice : Choice
            With the trial; the library's turn, or the kernel's.
        scale : float
            What turns its time into that of a call of its kind's typical size.
        call : callable
            Does it, given its arguments; a kernel's tells whether it has.
        arguments : tuple
            Of the call.
        """
        signal_handlers.defer_handlers()
        self.meet()
        service, inside = self._service, self._service.family.notices.inside
        began = time.perf_counter()
        if choice.algorithm == NATIVE:
            inside.begin()
            try:
                call(*arguments)
            finally:
                inside.end()
        elif not call(*arguments):
            demand = service.arguments.read(agreed.operation, "", AUTO, arguments)
            service.prepared(demand, SHARED, timed=False)()
        ended_s = time.perf_counter()
        self.meet()
        trial = choice.trial
        assert trial is not None
        trial.record((ended_s - began) * scale)
        if trial.is_full:
            self._conclude(agreed, trial)

    def meet(self) -> None:
        """Wait for all ranks before or after what is timed; as short as can be."""
        inside = self._service.family.notices.inside
        inside.begin()
        try:
            MPI.Intracomm.Barrier(self._service.plain)
        finally:
            inside.end()

    def _conclude(self, agreed: Agreed, trial: Trial) -> None:
        """End a race: the ranks agree on the times."""
        agreed_s = agreed_max(self._service.careful, trial.samples)
        self._service.chooser.conclude(agreed, agreed_s)
