"""What a DLPack capsule says about its array.

NumPy's own reader refuses types it has no name for (bfloat16), some it has one
for, and all memory of devices.  Nothing is taken from the capsule, which lets
its array go when it is dropped.  The layout is that of ``DLTensor`` in
dlpack.h, unchanged since version 0.2.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

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
    """Read where the array of a capsule lies, which is not used up.

    Local.

    Parameters
    ----------
    capsule : PyCapsule
        What ``__dlpack__()`` returned.

    Returns
    -------
    Tensor
        Good as long as the array lives.
    """
    tensor, dtype = _tensor(capsule), dlpack_dtype(capsule)
    size = tensor.bits * tensor.lanes // 8
    shape = tuple(tensor.shape[: tensor.ndim])
    steps = tensor.strides[: tensor.ndim] if tensor.strides else ()
    strides = tuple(size * step for step in steps)
    if dtype.itemsize != size:  # an element without a name is so many bytes
        shape, strides = (*shape, size), (*strides, 1) if strides else ()
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Tensor(pointer, tensor.device_id, shape, strides, dtype)


def _tensor(capsule: object) -> _Tensor:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return _Tensor.from_address(pointer(capsule, _NAME))


def dlpack_dtype(capsule: object) -> np.dtype[Any]:
    """Read the element type of a capsule, which is not used up.

    Local.

    Parameters
    ----------
    capsule : PyCapsule
        What ``__dlpack__()`` returned.

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
