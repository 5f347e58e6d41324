"""Arrays in device memory, recognised whatever library made them.

They are found by the CUDA array interface or by DLPack.  CuPy drives their
device and is imported when the first such array is met; a program may install
another runtime.

NumPy's own DLPack reader refuses types it has no name for (bfloat16), some
other types, and all device memory.  So capsules are read here.  The capsule is
not consumed: it releases its array when it is dropped.  The layout is that of
``DLTensor`` in dlpack.h, unchanged since version 0.2.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.gpu.cupy_runtime import cupy_runtime
from closeranks.comms.gpu.device_array import DEFAULT_STREAM, DeviceArray, Runtime, array_interface
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


_NAME = b"dltensor"
_FLOAT, _BFLOAT, _COMPLEX, _BOOL = 2, 4, 5, 6
_KINDS = {0: "i", 1: "u", _FLOAT: "f", _COMPLEX: "c"}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Tensor(NamedTuple):
    """An array as its capsule describes it.

    Attributes
    ----------
    pointer : int
        Address of the element with all indices 0.
    device : int
        Number of the device among those of its type.
    shape : tuple of int
        Its lengths.
    strides : tuple of int
        Bytes from index to index; () where rows lie side by side.
    dtype : numpy.dtype
        Bytes where NumPy and ml_dtypes have no name for it.
    """

    pointer: int
    device: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


def dlpack_tensor(capsule: object) -> Tensor:
    """Read where the array of a capsule lies; the capsule is not consumed.

    Local.

    Parameters
    ----------
    capsule : PyCapsule
        From ``__dlpack__()``.

    Returns
    -------
    Tensor
        Valid as long as the array lives.
    """
    tensor, dtype = _tensor(capsule), dlpack_dtype(capsule)
    size = tensor.bits * tensor.lanes // 8
    shape = tuple(tensor.shape[: tensor.ndim])
    steps = tensor.strides[: tensor.ndim] if tensor.strides else ()
    strides = tuple(size * step for step in steps)
    if dtype.itemsize != size:  # an unnamed element counts as bytes
        shape, strides = (*shape, size), (*strides, 1) if strides else ()
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Tensor(pointer, tensor.device_id, shape, strides, dtype)


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _tensor(capsule: object) -> _Tensor:
    return _Tensor.from_address(_pointer_of(capsule, _NAME))


def dlpack_dtype(capsule: object) -> np.dtype[Any]:
    """Read the element type of a capsule, which is not consumed.

    Local.

    Parameters
    ----------
    capsule : PyCapsule
        From ``__dlpack__()``.

    Returns
    -------
    numpy.dtype
        Bytes where NumPy and ml_dtypes have no name for it.
    """
    tensor = _tensor(capsule)
    code, nbytes = tensor.code, tensor.bits // 8
    if tensor.lanes == 2 and code == _FLOAT:  # complex, where bits do not fit a byte
        code, nbytes = _COMPLEX, 2 * nbytes
    elif tensor.lanes != 1:
        return np.dtype(np.uint8)
    if code == _BFLOAT and nbytes == 2:
        import ml_dtypes

        half: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return half
    if code == _BOOL and nbytes == 1:
        return np.dtype(np.bool_)
    try:
        named: np.dtype[Any] = np.dtype(f"{_KINDS[code]}{nbytes}")
    except (KeyError, TypeError):
        return np.dtype(np.uint8)
    return named


#: DLPack's kinds of memory: readable by the processor, and CUDA's own.
_HOST_KINDS, _CUDA = (1, 3, 11, 13), 2
#: CU_POINTER_ATTRIBUTE_MEMORY_TYPE and its value for device memory.
_MEMORY_TYPE, _DEVICE_MEMORY = 2, 2
#: Device files of the driver: of cards, which may come with the first use, and under Windows.
_CARDS, _WINDOWS = "/dev/nvidiactl", "/dev/dxg"

_installed: list[Runtime] = []


def install(runtime: Runtime) -> Callable[[], None]:
    """Let a runtime copy arrays in memory that it knows; asked before CUDA's.

    Local; on every rank before `closeranks.init`.

    Parameters
    ----------
    runtime : Runtime
        It knows its memory by `Runtime.device_of`.

    Returns
    -------
    callable
        Removes it again.
    """
    _installed.append(runtime)
    return lambda: _installed.remove(runtime)


def may_have_arrays() -> bool:
    """Tell whether this process may have arrays in device memory.  Local."""
    return bool(_installed) or os.access(_CARDS, os.F_OK) or _is_on_windows()


@cache
def _is_on_windows() -> bool:
    return os.access(_WINDOWS, os.F_OK)


def device_array(buffer: Any, operation: str, *, with_empty: bool = False) -> DeviceArray | None:
    """See an object as an array in device memory; nothing is copied.

    Local.

    Parameters
    ----------
    buffer : object
        Anything.
    operation : str
        The call, for the text of an error.
    with_empty : bool
        Whether to find arrays without elements, too.

    Returns
    -------
    DeviceArray or None
        None if the processor can touch the memory, or the object has none.

    Raises
    ------
    UsageError
        If the array does not export its memory, or lies on a device without a
        runtime here.
    Unavailable
        If it lies on a CUDA device and CuPy cannot be imported.
    """
    if not (hasattr(buffer, "__dlpack_device__") or may_have_arrays()):
        return None  # no driver, so no device; to look for its library takes longer
    found, where = _described(buffer, operation, on_host=False)
    if found is None or not (found.nbytes or with_empty):
        return None
    owner = _owner(found, where, operation)
    if owner is None:
        return None
    found.runtime, found.device = owner
    found.refresh()
    return found


def foreign_array(buffer: Any, operation: str) -> DeviceArray | NDArray[Any] | None:
    """See an object of another library as an array of its shape; nothing is copied.

    Local.

    Parameters
    ----------
    buffer : object
        Anything.
    operation : str
        The call, for the text of an error.

    Returns
    -------
    DeviceArray, ndarray or None
        An ndarray if the processor can touch the memory; None if the object has
        neither DLPack nor the CUDA array interface.

    Raises
    ------
    UsageError, Unavailable
        As `device_array`.
    """
    there = device_array(buffer, operation)
    if there is not None:
        return there
    found, _ = _described(buffer, operation, on_host=True)
    if found is None:
        return None
    if not found.nbytes:
        return np.empty(found.shape, found.dtype)
    return np.asarray(_Elements(found)).view(found.dtype)


class _HostBytes:
    """Bytes on the host for NumPy; keeps their capsule."""

    def __init__(self, pointer: int, nbytes: int, capsule: object) -> None:
        self.capsule = capsule
        self.__array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3,
        }  # fmt: skip


def host_array(buffer: Any) -> NDArray[Any] | None:
    """See memory that an object shows by DLPack alone, exporting it once.

    Local; for memory on the host.

    Parameters
    ----------
    buffer : object
        With ``__dlpack__``.

    Returns
    -------
    ndarray or None
        In one dimension; None if the object has another interface, no elements,
        or gaps.
    """
    if array_interface(buffer) is not None:
        return None
    capsule = buffer.__dlpack__()
    tensor, dtype = _tensor(capsule), dlpack_dtype(capsule)
    size, ndim = tensor.bits * tensor.lanes // 8, tensor.ndim
    shape = tensor.shape[:ndim]
    count = prod(shape)
    if tensor.strides and tensor.strides[:ndim] != _steps(shape):
        return None
    if not count or size % dtype.itemsize:
        return None
    pointer = (tensor.data or 0) + tensor.byte_offset
    return np.asarray(_HostBytes(pointer, count * size, capsule)).view(dtype)


def _steps(shape: list[int]) -> list[int]:
    """Give the strides of an array without gaps, in elements."""
    steps, step = [], 1
    for length in reversed(shape):
        steps.append(step)
        step *= length
    return steps[::-1]


class _Elements:
    """Elements on the host for NumPy, as bytes: it has no name for some types."""

    def __init__(self, found: DeviceArray) -> None:
        self.owner = found.owner
        self.__array_interface__ = {
            "shape": found.shape, "strides": found.strides, "typestr": f"|V{found.dtype.itemsize}",
            "data": (found.pointer, not found.writable), "version": 3,
        }  # fmt: skip


def _described(
    buffer: Any, operation: str, *, on_host: bool
) -> tuple[DeviceArray | None, int | None]:
    """Give an array as its maker describes it, and DLPack's kind of its memory."""
    kind = getattr(buffer, "__dlpack_device__", None)
    try:
        interface = array_interface(buffer)
        where = None if kind is None else int(kind()[0])
        if where in _HOST_KINDS:
            return (_from_dlpack(buffer, None) if on_host else None), where
        if interface is not None:
            return _from_interface(buffer, interface), where
        return (None if kind is None else _from_dlpack(buffer, DEFAULT_STREAM)), where
    except (RuntimeError, BufferError) as error:  # a tensor that computes gradients
        raise UsageError(operation, f"cannot reach the buffer: {error}",
                         "pass x.detach()") from error  # fmt: skip


def _owner(found: DeviceArray, where: int | None, operation: str) -> tuple[Runtime, int] | None:
    """Find the runtime of the device that an array lies on, and its number."""
    for runtime in _installed:
        device = runtime.device_of(found.pointer)
        if device is not None:
            return runtime, device
    if where not in (None, _CUDA):
        raise UsageError(operation, f"the buffer lies in memory of DLPack's device type {where}",
                         "copy it to the host")  # fmt: skip
    if where is None and found.nbytes and not _is_cuda(found.pointer):
        return None
    cuda = cupy_runtime()
    if found.nbytes:
        return cuda, cuda.device_of(found.pointer)
    # Without elements the address says nothing.
    return cuda, cuda.current() if where is None else int(found.owner.__dlpack_device__()[1])


def _is_cuda(pointer: int) -> bool:
    """Ask the CUDA driver, if in use, whether an address is device memory."""
    driver = _driver()
    if driver is None:
        return False
    kind = ctypes.c_uint(0)
    failed = driver.cuPointerGetAttribute(
        ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_uint64(pointer)
    )
    return not failed and kind.value == _DEVICE_MEMORY


def _driver() -> ctypes.CDLL | None:
    """Open the CUDA driver if some library of this process uses it."""
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:  # not loaded: this process has no device memory
        return None


_NOBODY: Any = None


def _from_interface(buffer: Any, interface: dict[str, Any]) -> DeviceArray:
    """Read the CUDA array interface, version 2 or 3."""
    dtype = np.dtype(interface["typestr"])
    if dtype.kind == "V" and hasattr(buffer, "__dlpack__"):  # bfloat16 has no name there
        dtype = dlpack_dtype(buffer.__dlpack__(stream=-1))
    pointer, fixed = interface["data"]
    shape = tuple(map(int, interface["shape"]))
    found = DeviceArray(int(pointer), shape, (), dtype, 0, not fixed, buffer, _NOBODY)
    strides = interface.get("strides")
    found.strides = _row_major(shape, dtype) if strides is None else tuple(map(int, strides))
    return found


def _from_dlpack(buffer: Any, stream: int | None) -> DeviceArray:
    """Read a DLPack capsule; the maker lets a stream wait for its work."""
    tensor = dlpack_tensor(buffer.__dlpack__(stream=stream))
    found = DeviceArray(
        tensor.pointer, tensor.shape, (), tensor.dtype, tensor.device, True, buffer, _NOBODY
    )
    found.strides = tensor.strides or _row_major(tensor.shape, tensor.dtype)
    return found


def _row_major(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Give the strides of an array without gaps, last index fastest."""
    return tuple(dtype.itemsize * prod(shape[place + 1 :]) for place in range(len(shape)))
