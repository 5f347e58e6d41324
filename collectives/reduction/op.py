"""Reductions: what an MPI op does to two blocks of memory.

A reducer is called as ``reducer(source, target)`` and leaves ``source op
target`` in ``target`` (MPI_Reduce_local: the source is the left operand).  The
predefined ops run in NumPy on the types NumPy knows, everything else in
MPI_Reduce_local, byte for byte as the library does it.

Results are those of MPI.  Where MPI leaves a case open: integers wrap around;
a NaN in MIN or MAX gives NaN whichever side it is on (libraries differ, and
differ by side); logical ops on integers give 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.buffers.datatype import REGISTERED, is_of_numpy
from closeranks.comms.mpi import messages
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

Array = NDArray[Any]


class Mean:
    """The type of `MEAN`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "closeranks.MEAN"

    def __reduce__(self) -> str:
        return "MEAN"


#: The sum over all ranks divided by their number; floating and complex types only.
MEAN: Final = Mean()

#: NumPy's ufunc for a predefined op, and the kinds of dtype it is MPI's meaning for.
_UFUNCS: dict[str, tuple[np.ufunc, str]] = {
    "SUM": (np.add, "iufcm"),
    "PROD": (np.multiply, "iufc"),
    "MIN": (np.minimum, "iufmM"),
    "MAX": (np.maximum, "iufmM"),
    "BAND": (np.bitwise_and, "iu"),
    "BOR": (np.bitwise_or, "iu"),
    "BXOR": (np.bitwise_xor, "iu"),
    "LAND": (np.logical_and, "iub"),
    "LOR": (np.logical_or, "iub"),
    "LXOR": (np.logical_xor, "iub"),
}


class Reducer:
    """``target = source op target`` on 1-D arrays of one type.

    Made by `reducer`.  Calling it is local and keeps nothing.

    Attributes
    ----------
    op : MPI.Op or None
        The op as the library knows it; None for `MEAN` and for types the library
        has no name for (bfloat16).
    datatype : MPI.Datatype or None
        The element's type, None for bfloat16 and float16.
    name : str or None
        The predefined op by MPI's name ("SUM"), None for ops of the user.
    commutative : bool
        Whether operands may change places.
    title : str
        The op as all ranks know it, see `title`.
    """

    __slots__ = ("_combine", "commutative", "datatype", "name", "op", "title")

    def __init__(
        self,
        combine: Callable[[Array, Array], object],
        op: MPI.Op | None,
        datatype: MPI.Datatype | None,
        *,
        name: str | None = None,
        commutative: bool,
    ) -> None:
        self._combine = combine
        self.name = name
        self.op = op
        self.datatype = datatype
        self.commutative = commutative
        self.title = name or ""

    def __call__(self, source: Array, target: Array) -> None:
        """Leave ``source op target`` in ``target``; 1-D arrays of equal length."""
        self._combine(source, target)


def is_commutative(op: MPI.Op | Mean) -> bool:
    """Return whether the operands of an op may change places.  Local."""
    return isinstance(op, Mean) or bool(op.Is_commutative())


def reducer(op: MPI.Op | Mean, datatype: MPI.Datatype | np.dtype[Any]) -> Reducer:
    """Make the function that combines two blocks of elements.

    Local.

    Parameters
    ----------
    op : MPI.Op or Mean
        A predefined op, a user's op, or `MEAN` (which adds; dividing is the
        caller's last step).
    datatype : MPI.Datatype or numpy dtype
        The element.  A numpy dtype is enough for types NumPy knows and needed
        for bfloat16, which MPI has no name for.

    Returns
    -------
    Reducer
        To be called with the arrays of a block: typed where NumPy knows the
        type, else any 1-D array of items of the datatype's extent.

    Raises
    ------
    UsageError
        If the op is not defined on the type: `MEAN` on integers, an op that
        neither NumPy nor MPI defines on it.
    """
    if isinstance(op, Mean) or not isinstance(datatype, np.dtype) or not op.is_predefined:
        made = _made(op, datatype)
        made.title = title(op)
        return made
    handle: int = op.handle
    return predefined(handle, datatype)


@lru_cache(maxsize=256)
def predefined(handle: int, dtype: np.dtype[Any]) -> Reducer:
    """Make the function of a predefined op once, see `reducer`.  Local.

    Parameters
    ----------
    handle : int
        Of the op.
    dtype : numpy.dtype
        The element.

    Returns
    -------
    Reducer
        The same for each call.
    """
    from mpi4py import MPI

    made = _made(MPI.Op.fromhandle(handle), dtype)
    made.title = _title(handle)
    return made


def _made(op: MPI.Op | Mean, datatype: MPI.Datatype | np.dtype[Any]) -> Reducer:
    """Make the function that combines two blocks of elements."""
    from mpi4py import MPI

    dtype = datatype if isinstance(datatype, np.dtype) else _numpy_type(datatype)
    if isinstance(op, Mean):
        if dtype is None or not _is_inexact(dtype):
            raise UsageError("MEAN", f"not defined on {dtype}", "use a floating type, or SUM")
        return Reducer(_ufunc(np.add), None, _mpi_type(dtype), name="SUM", commutative=True)
    if op == MPI.OP_NULL:
        raise UsageError("reduce", "the op is null", "it was freed; pass another one")
    name = name_of(op)
    commutative = bool(op.Is_commutative())
    mpi_type = datatype if isinstance(datatype, MPI.Datatype) else _mpi_type(datatype)
    if name is not None and dtype is not None:
        ufunc, kinds = _UFUNCS[name]
        if _kind(dtype) in kinds or _defines(ufunc, dtype):
            known = op if mpi_type is not None else None
            return Reducer(_ufunc(ufunc), known, mpi_type, name=name, commutative=commutative)
    if mpi_type is None:
        raise UsageError("reduce", f"op {title(op)} is not defined on {dtype}", "use another type")
    if problem := undefined(op, mpi_type):
        raise UsageError("reduce", problem, "use another op or another type")
    return Reducer(_library(op, mpi_type), op, mpi_type, commutative=commutative)


def _is_inexact(dtype: np.dtype[Any]) -> bool:
    return _kind(dtype) in "fc"


def _kind(dtype: np.dtype[Any]) -> str:
    """Return NumPy's kind; "f" for ml_dtypes' floats, of kind "V"."""
    return "f" if dtype.name == "bfloat16" else dtype.kind


def _defines(ufunc: np.ufunc, dtype: np.dtype[Any]) -> bool:
    """Tell whether a type of another package has the op, so that it gives such again."""
    if dtype.isbuiltin != REGISTERED:
        return False
    one = np.zeros(1, dtype)
    try:
        return bool(ufunc(one, one).dtype == dtype)
    except TypeError:
        return False


def _ufunc(ufunc: np.ufunc) -> Callable[[Array, Array], object]:
    """Combine in NumPy; half-precision types are added in float32 and rounded once."""

    def combine(source: Array, target: Array) -> object:
        return ufunc(source, target, out=target)

    return combine


def _library(op: MPI.Op, datatype: MPI.Datatype) -> Callable[[Array, Array], object]:
    extent = datatype.Get_extent()[1]

    def combine(source: Array, target: Array) -> None:
        left, right = source.view(np.uint8), target.view(np.uint8)
        for part in messages.cut(source.nbytes, max(messages.LONGEST // extent, 1) * extent):
            count = (part.stop - part.start) // extent
            op.Reduce_local([left[part], count, datatype], [right[part], count, datatype])

    return combine


def undefined(op: MPI.Op, datatype: MPI.Datatype) -> str:
    """Say that MPI does not define an op on a type, which one element tells.

    Local.

    Parameters
    ----------
    op : MPI.Op
        The op; of the user's own, nothing is known.
    datatype : MPI.Datatype
        The element.

    Returns
    -------
    str
        The problem; empty if there is none.
    """
    from mpi4py import MPI

    if not op.is_predefined:
        return ""
    low, extent = datatype.Get_extent()
    true_low, true_extent = datatype.Get_true_extent()
    room = max(low + extent, true_low + true_extent, 1)
    if min(low, true_low) < 0:  # no place for it, and no predefined op on such a type
        return f"op {title(op)} is not defined on {datatype.Get_name() or 'a derived type'}"
    one = np.zeros(room, np.uint8)
    try:
        op.Reduce_local([one, 1, datatype], [one.copy(), 1, datatype])
    except MPI.Exception:
        return f"op {title(op)} is not defined on {datatype.Get_name() or 'a derived type'}"
    return ""


def name_of(op: MPI.Op) -> str | None:
    """Name a predefined op that has a ufunc."""
    from mpi4py import MPI

    for name in _UFUNCS:
        if op == getattr(MPI, name):
            return name
    return None


def title(op: MPI.Op | Mean | None) -> str:
    """Name an op as all ranks know it.  Local."""
    if isinstance(op, Mean) or op is None:
        return "MEAN"
    return _title(op.handle) if op.is_predefined else "of the user"


@lru_cache(maxsize=32)
def _title(handle: int) -> str:
    from mpi4py import MPI

    op, names = MPI.Op.fromhandle(handle), (*_UFUNCS, "MINLOC", "MAXLOC", "REPLACE", "NO_OP")
    return next((name for name in names if op == getattr(MPI, name)), "unknown")


def _numpy_type(datatype: MPI.Datatype) -> np.dtype[Any] | None:
    """Return NumPy's dtype of a predefined MPI type, or None."""
    if not datatype.is_predefined:
        return None
    try:
        dtype = np.dtype(datatype.tocode())
    except (ValueError, TypeError):
        return None
    return dtype if dtype.itemsize == datatype.Get_extent()[1] else None


def _mpi_type(dtype: np.dtype[Any]) -> MPI.Datatype | None:
    """Return MPI's type of a NumPy dtype, or None where it has no name for it."""
    from mpi4py import MPI

    if (dtype.itemsize == 2 and _kind(dtype) == "f") or not dtype.isnative:
        return None
    if not is_of_numpy(dtype):
        return None
    try:
        return MPI.Datatype.fromcode(dtype.char)
    except (ValueError, KeyError):
        return None
