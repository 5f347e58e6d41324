"""Entries of a buffer, copied to packed bytes and back.

For buffers that the host cannot use in place: arrays with gaps, derived
datatypes, device memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from closeranks.comms.buffers.array_memory import ArrayMemory, Bytes
from closeranks.comms.buffers.datatype import Element
from closeranks.comms.gpu.pinned_staging import Span, fetch, put

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.comms.gpu.device_array import Event


def room(found: ArrayMemory, nbytes: int) -> Bytes:
    """Make host memory for data of a buffer, pinned where a device copies them.

    Local, by the caller's thread.

    Parameters
    ----------
    found : ArrayMemory
        The buffer.
    nbytes : int
        Its size.

    Returns
    -------
    ndarray of uint8
        Not initialised.
    """
    if found.device is None:
        return np.empty(nbytes, np.uint8)
    found.device.refresh()
    return found.device.runtime.pinned(nbytes)


def pack_memory(
    found: ArrayMemory,
    kind: Element,
    count: int,
    shift: int,
    out: Bytes,
    later: list[Event] | None = None,
) -> None:
    """Copy entries that the host cannot use as they are to packed bytes.

    Entries of an array with gaps or on a device, or of a derived datatype.

    Parameters
    ----------
    found : ArrayMemory
        The buffer.
    kind : Element
        An entry of the buffer.
    count : int
        Number of entries.
    shift : int
        Bytes from the start of the buffer to the first entry, gaps left out.
    out : ndarray of uint8
        Takes ``count * kind.nbytes`` bytes.
    later : list of Event, optional
        Takes events of a device after which ``out`` is complete, for a caller that
        waits for them; without it the host waits.
    """
    from closeranks.comms.buffers import packing
    from closeranks.comms.mpi.mpi_handle import SELF

    if found.device is not None and kind.plain:
        fetch(found.device, [Span(shift, 0, out.nbytes)], out, later)
    elif found.device is not None:
        pack_memory(_image(found), kind, count, shift, out)
    elif not found.contiguous:
        packing.pack(found.data, shift // kind.extent, count, out)
    elif count and kind.nbytes:
        assert kind.datatype is not None
        block = packing.worthwhile(kind.datatype, count, kind.extent, out.nbytes)
        if block is None or not packing.gather(found.data, shift, block, out):
            source = _region(found, kind, count, shift)
            kind.datatype.Pack(source, out, 0, SELF)


def unpack(data: Bytes, found: ArrayMemory, kind: Element, count: int, shift: int) -> None:
    """Copy packed bytes to entries that the host cannot use as they are.

    Parameters
    ----------
    data : ndarray of uint8
        Holds ``count * kind.nbytes`` bytes.
    found : ArrayMemory
        The buffer.
    kind : Element
        An entry of the buffer.
    count : int
        Number of entries.
    shift : int
        Bytes from the start of the buffer to the first entry, gaps left out.
    """
    from closeranks.comms.buffers import packing
    from closeranks.comms.mpi.mpi_handle import SELF

    if found.device is not None and kind.plain:
        put(found.device, [Span(shift, 0, data.nbytes)], data)
    elif found.device is not None:
        image = _image(found)
        unpack(data, image, kind, count, shift)
        put(found.device, [Span(0, 0, image.nbytes)], image.data)
    elif not found.contiguous:
        packing.fill(data, found.data, shift // kind.extent, count)
    elif count and kind.nbytes:
        assert kind.datatype is not None
        block = packing.worthwhile(kind.datatype, count, kind.extent, data.nbytes)
        if block is None or not packing.scatter(data, found.data, shift, block):
            target = _region(found, kind, count, shift)
            kind.datatype.Unpack(data, 0, target, SELF)


def _image(found: ArrayMemory) -> ArrayMemory:
    """Copy a device array to the host, for entries that have gaps in it."""
    assert found.device is not None
    data = room(found, found.nbytes)
    fetch(found.device, [Span(0, 0, found.nbytes)], data)
    return ArrayMemory(data, found.dtype, found.nbytes, True)


def _region(found: ArrayMemory, kind: Element, count: int, shift: int) -> MPI.buffer:
    """Name ``count`` extents of memory, of which the last may be cut short."""
    from mpi4py import MPI

    return MPI.buffer.fromaddress(found.data.ctypes.data + shift, count * kind.extent)
