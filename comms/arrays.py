"""Memory of the caller's objects, whatever library made them.

Everything that mpi4py takes is taken: the buffer protocol, DLPack, the CUDA
array interface; and two things it does not take: element types that only
ml_dtypes knows (bfloat16), and arrays whose memory has gaps.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.dlpack import dlpack_dtype
from closeranks.errors import UsageError

Bytes = NDArray[np.uint8]
#: DLPack device types whose memory the processor can touch.
_HOST_DEVICES = (1, 3, 11, 13)
_DEVICE_MEMORY = 2


@dataclass(frozen=True, slots=True)
class Memory:
    """Where an object keeps its elements.

    Attributes
    ----------
    data : ndarray
        Of shape (nbytes,) and type uint8 where the memory has no gaps, else the
        array itself, whose elements go in the order of its indices.
    dtype : numpy.dtype
        Type of an element.
    nbytes : int
        Bytes of all elements.
    contiguous : bool
        Whether the memory has no gaps.
    """

    data: NDArray[Any]
    dtype: np.dtype[Any]
    nbytes: int
    contiguous: bool


def memory(buffer: object, operation: str, *, writable: bool = False) -> Memory:
    """Find the memory of an object; nothing is copied.

    Local.

    Parameters
    ----------
    buffer : object
        An array, or any object with the buffer protocol, DLPack or the CUDA
        array interface, in host memory.
    operation : str
        Who asks, for the text of an error.
    writable : bool
        Whether it will be written.

    Returns
    -------
    Memory
        Alive as long as it is referenced.

    Raises
    ------
    UsageError
        If the object has no memory that the processor can reach, or is
        read-only and is to be written.
    """
    array = buffer if isinstance(buffer, np.ndarray) else _array(buffer, operation, writable)
    if writable and not array.flags.writeable:
        raise UsageError(operation, "the receive buffer is read-only", "pass a writable array")
    if array.dtype.hasobject:
        raise UsageError(operation, f"elements of type {array.dtype} are Python objects",
                         "use the lower-case method, which pickles")  # fmt: skip
    flags = array.flags
    if flags.c_contiguous:
        data = array.reshape(-1).view(np.uint8) if array.ndim else array.reshape(1).view(np.uint8)
    elif flags.f_contiguous:
        data = array.T.reshape(-1).view(np.uint8)
    else:
        return Memory(array, array.dtype, array.nbytes, False)
    return Memory(data, array.dtype, array.nbytes, True)


def _array(buffer: object, operation: str, writable: bool) -> NDArray[Any]:
    """View an object that is no ndarray as one."""
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
    except (TypeError, BufferError, ValueError):
        return _foreign(buffer, operation, writable)
    try:
        return np.asarray(view)
    except ValueError:  # a format that NumPy does not know
        return np.frombuffer(view, np.uint8)


def _foreign(buffer: object, operation: str, writable: bool) -> NDArray[Any]:
    """View an object with DLPack or the CUDA array interface, in host memory."""
    from mpi4py import MPI

    if not hasattr(buffer, "__dlpack__") and not hasattr(buffer, "__cuda_array_interface__"):
        kind = type(buffer).__name__
        raise UsageError(operation, f"a {kind} is no buffer", "pass an array, or [array, type]")
    try:
        found = MPI.buffer.frombuffer(buffer, readonly=not writable)
    except (BufferError, TypeError, ValueError) as error:
        raise UsageError(operation, f"cannot reach the buffer: {error}",
                         "pass a contiguous array") from error  # fmt: skip
    if _on_device(buffer, found.address):
        raise UsageError(operation, "the buffer lies in device memory",
                         "copy it to the host, or pass algorithm='native'")  # fmt: skip
    if not found.nbytes:
        return np.empty(0, _element(buffer))
    whole: NDArray[Any] = np.frombuffer(found, np.uint8)  # type: ignore[call-overload]
    return whole.view(_element(buffer))


def _element(buffer: Any) -> np.dtype[Any]:
    """Tell the element type of a foreign array; bytes where NumPy has no name for it."""
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is not None:
        named: np.dtype[Any] = np.dtype(interface["typestr"])
        return named
    return dlpack_dtype(buffer.__dlpack__())


def _on_device(buffer: Any, address: int) -> bool:
    """Tell whether the processor cannot touch an address."""
    if hasattr(buffer, "__dlpack_device__"):
        return int(buffer.__dlpack_device__()[0]) not in _HOST_DEVICES
    driver = _driver()
    if driver is None or not address:
        return False
    kind = ctypes.c_uint(0)
    failed = driver.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(address))
    return not failed and kind.value == _DEVICE_MEMORY


def _driver() -> ctypes.CDLL | None:
    """Open the CUDA driver where some library of this process uses it."""
    if "libcuda.so" not in Path("/proc/self/maps").read_text(errors="replace"):
        return None
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
