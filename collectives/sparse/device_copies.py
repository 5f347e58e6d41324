"""Arguments of sparse calls that lie on a device: read on the host, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from closeranks.collectives.engine.call_guard import WHOLE
from closeranks.comms.gpu.array_place import arrays_on_host

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.comms.gpu.array_place import DevicePlace


def read_arrays(
    service: Service, given: Sequence[Any], where: str
) -> tuple[list[Any], list[DevicePlace | None]]:
    """Copy arguments of a call to the host where they lie on a device.

    Local, as `arrays_on_host`.

    Parameters
    ----------
    service : Service
        Of the communicator; counts the call if an argument lies on a device.
    given : sequence of object
        Arguments.
    where : str
        The call, for the text of an error.

    Returns
    -------
    arrays : list of object
        On the host.
    places : list of DevicePlace or None
        Where each lay; None for the host.
    """
    arrays, places = arrays_on_host(given, where)
    count_copies(service, places)
    return arrays, places


def count_copies(service: Service, places: Sequence[DevicePlace | None]) -> None:
    """Count a call that reads arrays on devices, see `Statistics.device`.  Local."""
    if any(place is not None for place in places):
        service.counters.device[WHOLE] += 1
