"""Trials before the first call of operations that are made once.

A persistent operation keeps the algorithm that it is made with.  Where nothing
is known yet, calls of its kind on memory of our own decide.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from closeranks.collectives.selection.trial import RACES

if TYPE_CHECKING:
    from closeranks.collectives.arguments.collective_call import Demand
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.selection.chooser import Choice

#: Calls that are predicted to take longer are not rehearsed, seconds.
_LONGEST_S: Final = 1e-3


def _zeros(nbytes: int) -> Any:
    return np.zeros(nbytes, np.uint8)


#: Arguments of a call, from its bytes and the number of ranks.
_ARGUMENTS: Final[dict[str, Callable[[int, int], tuple[Any, ...]]]] = {
    "allgather": lambda n, size: (_zeros(n), _zeros(n * size)),
    "allreduce": lambda n, _: (_zeros(n), _zeros(n), MPI.BOR),
    "alltoall": lambda n, size: (_zeros(n * size), _zeros(n * size)),
    "barrier": lambda _n, _: (),
    "bcast": lambda n, _: (_zeros(n), 0),
    "reduce": lambda n, _: (_zeros(n), _zeros(n), MPI.BOR, 0),
    "reduce_scatter_block": lambda n, size: (_zeros(n * size), _zeros(n), MPI.BOR),
}


def rehearse(service: Service, demand: Demand, choice: Choice) -> None:
    """Settle the trial of a kind of calls, if that is quickly done.

    Collective over the service's ranks, whose choice is the same.

    Parameters
    ----------
    service : Service
        Serves the calls.
    demand : Demand
        One of them; its buffers are left alone.
    choice : Choice
        What is known about them.
    """
    operation, trial = demand.operation, choice.trial
    if trial is None or trial.winner is not None or operation not in _ARGUMENTS:
        return
    if choice.predicted_s > _LONGEST_S or not demand.commutative:
        return
    if not service.family.threaded or service.family.tuning.name(operation, demand.nbytes):
        return  # trials do not decide
    arguments = _ARGUMENTS[operation](demand.nbytes, demand.size)
    read = partial(service.read, operation, "", "auto", arguments)
    sent = service.counters.sent.copy()
    for _ in range(RACES):
        for _ in range(trial.calls_left if trial.winner is None else 0):
            service.serve("auto", read, read())
    service.counters.sent.clear()
    service.counters.sent.update(sent)
