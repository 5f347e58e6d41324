"""What a DLPack capsule says about its elements.

NumPy's own reader refuses types it has no name for (bfloat16) and some it has
one for; only the type is read here, the memory comes from elsewhere.  The
layout is that of ``DLTensor`` in dlpack.h, unchanged since version 0.2.
"""

from __future__ import annotations

import ctypes
from typing import Any

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
    ]


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
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, _NAME))
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
