"""Arguments that may lie on a device: read on the host, results put beside them.

A call that computes on the host reads its arrays by `arrays_on_host`, and puts
a result where its own array lay by `placed`.  Copies go through
`closeranks.comms.gpu.pinned_staging`, in the order of the caller's streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.gpu.array_interface import device_array, foreign_array
from closeranks.comms.gpu.device_array import DeviceArray, Event, Runtime, array_interface
from closeranks.comms.gpu.pinned_staging import Span, copy_streams, put
from closeranks.errors import Unavailable, UsageError

_REMEDY = "copy it to the host"


class DevicePlace(NamedTuple):
    """Where an array of the caller's lies on a device, and the stream that uses it.

    Attributes
    ----------
    runtime : Runtime
        Drives the device.
    device : int
        Its number.
    stream : int
        The stream of the array at the time of the call.
    is_ordered : bool
        Whether that is certain, see `DeviceArray`.
    """

    runtime: Runtime
    device: int
    stream: int
    is_ordered: bool

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """Whether the library that drives the device has arrays of a type.  Local."""
        try:
            self.runtime.empty((0,), dtype, self.device, self.stream)
        except (TypeError, ValueError):
            return False
        return True


def seen(given: Any, where: str) -> DeviceArray | Any:
    """See an argument as an array on a device, if it lies on one; nothing is copied.

    Local.

    Parameters
    ----------
    given : object
        Anything.
    where : str
        The call, for the text of an error.

    Returns
    -------
    DeviceArray or object
        The argument itself where it lies on no device; an array of no elements
        lies somewhere, too.

    Raises
    ------
    UsageError
        If it lies on no device of this process, or nothing here copies it, or
        there can be no results of its type beside it.
    """
    if isinstance(given, np.ndarray):
        return given
    try:
        found = device_array(given, where, with_empty=True)
    except Unavailable as error:  # an error of wrong arguments, so that other ranks hear of it
        raise UsageError(where, f"an array on a GPU: {error}", _REMEDY) from error
    if found is not None:
        is_named = len(found.shape) == len(getattr(given, "shape", found.shape))
        if not is_named or not place_of(found).holds(found.dtype):
            kind = getattr(given, "dtype", found.dtype)
            raise UsageError(where, f"an array of {kind} on a GPU", _REMEDY)
        return found
    if array_interface(given) is None:
        return given
    if not hasattr(given, "__dlpack_device__"):  # its address may be anybody's
        raise UsageError(where, "an array in memory of no device of this process", _REMEDY)
    return foreign_array(given, where)  # the processor can touch it


def place_of(array: DeviceArray) -> DevicePlace:
    """Tell where an array lies.  Local."""
    return DevicePlace(array.runtime, array.device, array.stream, array.is_ordered)


def arrays_on_host(given: Sequence[Any], where: str) -> tuple[list[Any], list[DevicePlace | None]]:
    """Copy arguments that lie on devices to the host; the host waits for the copies.

    Local.

    Parameters
    ----------
    given : sequence of object
        Anything; what lies on no device is not looked at.
    where : str
        The call, for the text of an error.

    Returns
    -------
    arrays : list of object
        Copies in pinned memory, last index fastest; the others as they were given.
    places : list of DevicePlace or None
        Where each lies; None for the host.

    Raises
    ------
    UsageError
        As `seen`.
    """
    arrays: list[Any] = []
    places: list[DevicePlace | None] = []
    arrived: list[Event] = []
    for found in [seen(one, where) for one in given]:
        if not isinstance(found, DeviceArray):
            arrays.append(found)
            places.append(None)
            continue
        out = found.runtime.pinned(found.nbytes)
        if found.nbytes:
            span = Span(0, 0, found.nbytes)
            arrived.append(copy_streams(found).read(found, [span], out, row_major=True))
        arrays.append(out.view(found.dtype).reshape(found.shape))
        places.append(place_of(found))
    for event in arrived:
        event.synchronize()
    return arrays, places


def placed(data: NDArray[Any], place: DevicePlace | None) -> Any:
    """Bring an array from the host to where another one lies.

    Local.  The host does not wait if the stream there is certain.

    Parameters
    ----------
    data : ndarray
        Any; may be written again at once.
    place : DevicePlace or None
        Where to; None is the host.

    Returns
    -------
    array
        The data themselves for the host; else a new array of the library that
        drives the device, there in the order of its stream and of the place's.
    """
    if place is None:
        return data
    runtime, device, stream, is_ordered = place
    made = runtime.empty(data.shape, data.dtype, device, stream)
    target = device_array(made, "results") if data.nbytes else None
    if target is None:
        return made
    pinned = runtime.pinned(data.nbytes)
    pinned.view(data.dtype).reshape(data.shape)[...] = data
    target.ready = runtime.record(stream, device)  # whose memory it may have been before
    put(target, [Span(0, 0, data.nbytes)], pinned)
    if not is_ordered:
        target.settle()
    elif target.landed is not None and target.stream != stream:
        runtime.hold(stream, target.landed, device)
    return made
