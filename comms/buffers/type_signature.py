"""Type signatures: what the bytes of an entry mean, whoever names it.

MPI asks that what is received has the signature of what was sent.  Bytes go
with everything: programs send numbers as bytes, and know why.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from closeranks.comms.buffers.datatype import REGISTERED

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.comms.buffers.datatype import Element

#: What goes with everything, and what is of several signatures.
BYTES: Final = "bytes"
MIXED: Final = "a structure"
_keyval: int | None = None


def signature(element: Element) -> str:
    """Say what the bytes of an entry mean.

    Local.

    Parameters
    ----------
    element : Element
        The entry.

    Returns
    -------
    str
        For instance "int64", "swapped float32", `BYTES` or `MIXED`.
    """
    if element.dtype is not None:
        return of_dtype(element.dtype)
    return BYTES if element.datatype is None else _of_datatype(element.datatype)


def go_together(first: str, second: str) -> bool:
    """Tell whether what has one signature may be received as the other.  Local."""
    return first == second or bool({BYTES, MIXED} & {first, second})


@lru_cache(maxsize=256)
def of_dtype(dtype: np.dtype[Any]) -> str:
    """Say what the bytes of a NumPy type mean.

    Local.  Signed and unsigned integers of a width are alike, so are times, which
    are integers; a complex number is two real ones.

    Parameters
    ----------
    dtype : numpy.dtype
        Any.

    Returns
    -------
    str
        As `signature`.
    """
    if dtype.isbuiltin == REGISTERED:
        return dtype.name
    if dtype.itemsize == 1 or dtype.kind == "S" or (dtype.kind == "V" and dtype.names is None):
        return BYTES
    order = "" if dtype.isnative else "swapped "
    if dtype.kind in "iumM":
        return f"{order}int{8 * dtype.itemsize}"
    if dtype.kind in "fc":
        return f"{order}float{8 * dtype.itemsize // (2 if dtype.kind == 'c' else 1)}"
    return str(dtype)


def _of_datatype(datatype: MPI.Datatype) -> str:
    """Find what a datatype is made of; kept with it as an attribute."""
    from mpi4py import MPI

    global _keyval
    if datatype.is_predefined:
        return MIXED  # pairs of MINLOC, say
    if _keyval is None:
        _keyval = MPI.Datatype.Create_keyval()
    known: Any = datatype.Get_attr(_keyval)
    if known is None:
        known = _decoded(datatype)
        datatype.Set_attr(_keyval, known)
    found: str = known
    return found


def _decoded(datatype: MPI.Datatype) -> str:
    """Take a datatype apart, down to the types that MPI names."""
    from mpi4py import MPI

    from closeranks.comms.buffers.datatype import element

    inner, _, given = datatype.decode()
    named = (inner, *given.get("datatypes", ()))  # a structure has no inner type
    parts = {one.handle: one for one in named if one != MPI.DATATYPE_NULL}
    try:
        found = {
            signature(element(one, np.dtype(np.uint8), "a datatype"))
            if one.is_predefined
            else _of_datatype(one)
            for one in parts.values()
            if one.handle != datatype.handle
        }
        return found.pop() if len(found) == 1 else MIXED
    finally:
        for one in parts.values():
            if not one.is_predefined and one.handle != datatype.handle:
                one.Free()
