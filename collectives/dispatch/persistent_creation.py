"""How persistent operations are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from closeranks.collectives.arguments.call_key import agreed_of
from closeranks.collectives.dispatch.persistent_operation import Persistent
from closeranks.collectives.dispatch.shm_persistent import NearPersistent, is_brief
from closeranks.collectives.dispatch.warm_up_trials import rehearse
from closeranks.collectives.engine import interpreter
from closeranks.collectives.selection.call_options import AUTO
from closeranks.collectives.selection.chooser import NATIVE, SHARED
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service


def persistent(
    service: Service,
    operation: str,
    algorithm: str,
    arguments: tuple[Any, ...],
    info: MPI.Info,
    *,
    shown: bool,
) -> Persistent:
    """Make a persistent operation.  Collective.

    Parameters
    ----------
    service : Service
        Who serves it.
    operation, algorithm : str
        Which, and how, "auto" included.
    arguments : tuple
        As of the blocking call.
    info : MPI.Info
        Hints for the library; nothing else knows any.
    shown : bool
        Whether the program gets it, and mpi4py may start it.

    Returns
    -------
    Persistent
        Closed with the world.

    Raises
    ------
    UsageError
        If the arguments are no good (local).
    """
    if not isinstance(info, MPI.Info):
        raise UsageError(operation, f"info {info!r} is no MPI.Info", "pass MPI.INFO_NULL")
    demand = service.read(operation, "_init", algorithm, arguments)
    demand.background = True
    untimed = not (service.is_timed() or service.family.devices)
    if untimed and not demand.planned and service.wanted(operation, algorithm) == AUTO:
        rehearse(service, demand, service.chooser.settled(agreed_of(demand)))
    name, _ = service.decide(demand, algorithm, "_init")
    if name not in (NATIVE, SHARED):
        interpreter.prepare(service.world, together=True)
    call = (algorithm, *arguments)
    if name == SHARED and is_brief(service, demand, service.chooser.settled(agreed_of(demand))):
        made: Persistent = NearPersistent(service, demand, call)
    else:
        made = Persistent(service, demand, name, call, info)
    if shown:
        made.offer()
    return service.world.own(made)
