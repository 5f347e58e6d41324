"""The memory of a caller's object, whatever library made it.

Every buffer that mpi4py takes is taken: the buffer protocol, DLPack, the CUDA
array interface.  Three more are taken:

* element types that only ml_dtypes knows (bfloat16);
* arrays with gaps in memory;
* arrays in device memory that the MPI library cannot reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.gpu.array_interface import device_array, dlpack_dtype, host_array
from closeranks.comms.gpu.device_array import DeviceArray
from closeranks.errors import UsageError, WrongType

Bytes = NDArray[np.uint8]
_NO_BYTES = np.empty(0, np.uint8)


@dataclass(eq=False, slots=True)
class ArrayMemory:
    """Where an object keeps its elements; nothing is changed after it is made.

    Attributes
    ----------
    data : ndarray
        Of shape (nbytes,) and type uint8 if the memory has no gaps, else the array
        itself, its elements in the order of its indices.  Empty if only a device
        can reach the memory.
    dtype : numpy.dtype
        Type of an element.
    nbytes : int
        Bytes of all elements.
    contiguous : bool
        Whether the memory has no gaps.
    device : DeviceArray or None
        The array in device memory; None where the processor can reach it.
    is_exported : bool
        Whether the object has no buffer protocol: it shows its memory by DLPack or
        the CUDA array interface, which takes long.
    """

    data: NDArray[Any]
    dtype: np.dtype[Any]
    nbytes: int
    contiguous: bool
    device: DeviceArray | None = None
    is_exported: bool = False


def memory(buffer: object, operation: str, *, writable: bool = False) -> ArrayMemory:
    """Find the memory of an object; nothing is copied.

    Local.

    Parameters
    ----------
    buffer : object
        An array, or any object with the buffer protocol, DLPack or the CUDA
        array interface.
    operation : str
        The call, for the text of an error.
    writable : bool
        Whether it will be written.

    Returns
    -------
    ArrayMemory
        Keeps the memory alive.

    Raises
    ------
    UsageError
        If the object has no memory that can be reached, or is read-only and is
        to be written.
    Unavailable
        If it lies on a device and the library to copy from there is missing.
    """
    is_exported = False
    if isinstance(buffer, np.ndarray):
        # A matrix is never flat, and a masked array is not bytes.
        array = buffer if type(buffer) is np.ndarray else buffer.view(np.ndarray)
    else:
        seen = _viewed(buffer)
        if seen is None:
            there = device_array(buffer, operation)
            if there is not None:
                return _on_device(there, operation, writable)
            seen, is_exported = _foreign(buffer, operation, writable)
        array = seen
    flags = array.flags
    if writable and not flags.writeable:
        _check_writable(False, operation)
    if array.dtype.hasobject:
        raise UsageError(operation, f"elements of type {array.dtype} are Python objects",
                         "use the lower-case method, which pickles")  # fmt: skip
    if flags.c_contiguous:
        data = array.reshape(-1).view(np.uint8) if array.ndim else array.reshape(1).view(np.uint8)
    elif flags.f_contiguous:
        data = array.T.reshape(-1).view(np.uint8)
    else:
        return ArrayMemory(array, array.dtype, array.nbytes, False)
    return ArrayMemory(data, array.dtype, array.nbytes, True, None, is_exported)


def _check_writable(is_right: bool, operation: str) -> None:
    if not is_right:
        raise UsageError(operation, "the receive buffer is read-only", "pass a writable array")


def _on_device(there: DeviceArray, operation: str, writable: bool) -> ArrayMemory:
    """Describe memory that only a device can reach."""
    _check_writable(there.writable or not writable, operation)
    return ArrayMemory(_NO_BYTES, there.dtype, there.nbytes, there.contiguous, there)


def _viewed(buffer: object) -> NDArray[Any] | None:
    """View an object with the buffer protocol as an array; None without."""
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
    except (TypeError, BufferError, ValueError):
        return None
    try:
        return np.asarray(view)
    except ValueError:  # a format that NumPy does not know
        return np.frombuffer(view, np.uint8)


def _foreign(buffer: object, operation: str, writable: bool) -> tuple[NDArray[Any], bool]:
    """View an object with DLPack or the CUDA array interface, in host memory.

    Tells also whether the view stands for the object.
    """
    if not hasattr(buffer, "__dlpack__") and not hasattr(buffer, "__cuda_array_interface__"):
        kind = type(buffer).__name__
        raise WrongType(operation, f"a {kind} is no buffer", "pass an array, or [array, type]")
    try:
        seen = host_array(buffer) if hasattr(buffer, "__dlpack__") else None
        if seen is not None:
            return seen, True
        from mpi4py import MPI

        found = MPI.buffer.frombuffer(buffer, readonly=not writable)
    except (BufferError, TypeError, ValueError) as error:
        raise UsageError(operation, f"cannot reach the buffer: {error}",
                         "pass a contiguous array") from error  # fmt: skip
    if not found.nbytes:
        return np.empty(0, _element(buffer)), False
    whole: NDArray[Any] = np.frombuffer(found, np.uint8)  # type: ignore[call-overload]
    return whole.view(_element(buffer)), True


def _element(buffer: Any) -> np.dtype[Any]:
    """Tell the element type of a foreign array; bytes where NumPy has no name for it."""
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is not None:
        named: np.dtype[Any] = np.dtype(interface["typestr"])
        return named
    return dlpack_dtype(buffer.__dlpack__())
