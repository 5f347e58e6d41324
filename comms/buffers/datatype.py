"""One entry of a message: MPI datatype, NumPy type, size, type signature.

MPI asks that received data have the signature of the sent data.  Bytes match
every signature: programs send numbers as bytes on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from closeranks.comms.argument import shown
from closeranks.errors import UnknownCode, UsageError, WrongType

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True, slots=True)
class Element:
    """One entry, the unit in which a buffer is counted.

    Attributes
    ----------
    dtype : numpy.dtype or None
        Its NumPy type; None where NumPy has no name for it.
    datatype : MPI.Datatype or None
        Its MPI datatype; None where MPI has no name for it (bfloat16).
    nbytes : int
        Bytes of its data: the size of its type signature.
    extent : int
        Bytes from one entry to the next.
    true_lower, true_upper : int
        Where its first data byte lies and its last one ends.
    plain : bool
        Whether its data fill its extent, so that entries are plain bytes.
    """

    dtype: np.dtype[Any] | None
    datatype: MPI.Datatype | None
    nbytes: int
    extent: int
    true_lower: int
    true_upper: int
    plain: bool

    def __str__(self) -> str:
        if self.dtype is not None:
            return str(self.dtype)
        return self.datatype.Get_name() or "a derived datatype" if self.datatype else "bytes"


#: Elements that are known already, by NumPy type.
OF_DTYPE: dict[np.dtype[Any], Element] = {}
_of_handle: dict[int, Element] = {}


def element(datatype: MPI.Datatype | str | None, dtype: np.dtype[Any], operation: str) -> Element:
    """Find the entry in which a buffer is counted.

    Local.

    Parameters
    ----------
    datatype : MPI.Datatype, str or None
        As the caller gave it; None takes the type of the array.
    dtype : numpy.dtype
        Type of the array's elements.
    operation : str
        The call, for the text of an error.

    Returns
    -------
    Element
        Kept for predefined types.

    Raises
    ------
    UsageError
        If a type code means nothing to MPI, or the datatype is null or not
        committed.
    WrongType
        If it is no datatype at all.
    """
    if datatype is None:
        known = OF_DTYPE.get(dtype)
        if known is None:
            known = OF_DTYPE[dtype] = _from_numpy(dtype)
        return known
    if isinstance(datatype, str):
        datatype = _named(datatype, operation)
    try:
        known = _of_handle.get(datatype.handle)
    except AttributeError:
        problem = f"{shown(datatype)} where a datatype is needed"
        way_out = "give an MPI.Datatype or its code; displacements go with counts: (counts, displs)"
        raise WrongType(operation, problem, way_out) from None
    if known is not None:
        return known
    return _from_mpi(datatype, operation)


def _named(code: str, operation: str) -> MPI.Datatype:
    """Look up a type code as mpi4py does."""
    from mpi4py import MPI

    try:
        return MPI.Datatype.fromcode(code)
    except (KeyError, ValueError) as error:
        problem = f"no MPI datatype has the code {code!r}"
        raise UnknownCode(operation, problem, "use a code such as 'd', or a datatype") from error


#: `numpy.dtype.isbuiltin` of types that other packages have registered.
REGISTERED: Final = 2


def is_of_numpy(dtype: np.dtype[Any]) -> bool:
    """Tell whether a type's letter means what it means to NumPy and MPI.

    Local.  Types of other packages reuse letters: ml_dtypes' float8_e4m3fnuz has
    the letter of a long double.  Copies of NumPy's own types (of arrays that were
    pickled, or swapped twice) are not foreign.

    Parameters
    ----------
    dtype : numpy.dtype
        Any.

    Returns
    -------
    bool
        False also for structures, for numbers in foreign byte order, and for
        times: NaT is none of MPI's integers.
    """
    is_plain = dtype.isnative and not dtype.names and dtype.kind not in "mM"
    return is_plain and dtype.isbuiltin != REGISTERED


def _from_numpy(dtype: np.dtype[Any]) -> Element:
    """Describe elements of an array; types unknown to MPI travel as bytes."""
    from mpi4py import MPI

    size = dtype.itemsize
    found: MPI.Datatype | None
    try:
        found = MPI.Datatype.fromcode(dtype.char) if is_of_numpy(dtype) else None
    except (KeyError, ValueError):
        found = None
    if found is not None and (found == MPI.DATATYPE_NULL or found.Get_size() != size):
        found = None
    return Element(dtype, found, size, size, 0, size, True)


def _from_mpi(datatype: MPI.Datatype, operation: str) -> Element:
    """Measure an MPI datatype."""
    from mpi4py import MPI

    if datatype == MPI.DATATYPE_NULL:
        way_out = "it was freed, or this MPI library lacks it; pass another one"
        raise UsageError(operation, "the datatype is null", way_out)
    size = datatype.Get_size()
    lower, extent = datatype.Get_extent()
    true_lower, true_extent = datatype.Get_true_extent()
    named = bool(datatype.is_predefined)
    if not named:
        _check_committed(datatype, operation)
    plain = named and lower == true_lower == 0 and size == extent == true_extent
    dtype = _numpy_of(datatype, extent) if named else None
    made = Element(dtype, datatype, size, extent, true_lower, true_lower + true_extent, plain)
    if named and datatype.is_named:
        _of_handle[datatype.handle] = made
    return made


def _check_committed(datatype: MPI.Datatype, operation: str) -> None:
    """Refuse a derived datatype that messages may not have yet.

    MPI reports it only when the datatype is used.  Packing no entry is the least
    use; other uses end some libraries with a segmentation fault.
    """
    from mpi4py import MPI

    from closeranks.comms.mpi.mpi_handle import SELF

    try:
        datatype.Pack(b"", bytearray(1), 0, SELF)
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_TYPE:
            raise
        problem = f"{datatype.Get_name() or 'a derived datatype'} is not committed"
        raise UsageError(operation, problem, "call its Commit() first") from None


def _numpy_of(datatype: MPI.Datatype, extent: int) -> np.dtype[Any] | None:
    """Give NumPy's type of a predefined MPI type, or None."""
    from mpi4py import MPI

    if MPI.BFLOAT16_T != MPI.DATATYPE_NULL and datatype == MPI.BFLOAT16_T:
        import ml_dtypes

        half: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return half
    code = datatype.typechar if datatype.is_named else None
    if not code:
        return None
    try:
        dtype: np.dtype[Any] = np.dtype(code)
    except TypeError:
        return None
    return dtype if dtype.itemsize == extent else None


#: Signature that matches every other, and signature of mixed entries.
BYTES: Final = "bytes"
MIXED: Final = "a structure"
_signature_keyval: int | None = None


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
    """Tell whether data of one signature may be received as the other.  Local."""
    return first == second or bool({BYTES, MIXED} & {first, second})


@lru_cache(maxsize=256)
def of_dtype(dtype: np.dtype[Any]) -> str:
    """Say what the bytes of a NumPy type mean.

    Local.  Signed and unsigned integers of a width are alike.  Times are integers
    too; a complex number is two real ones.

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
    """Find the signature of a datatype; kept with it as an attribute."""
    from mpi4py import MPI

    global _signature_keyval
    if datatype.is_predefined:
        return MIXED  # pairs of MINLOC, say
    if _signature_keyval is None:
        _signature_keyval = MPI.Datatype.Create_keyval()
    known: Any = datatype.Get_attr(_signature_keyval)
    if known is None:
        known = _decoded_signature(datatype)
        datatype.Set_attr(_signature_keyval, known)
    found: str = known
    return found


def _decoded_signature(datatype: MPI.Datatype) -> str:
    """Take a datatype apart, down to the types that MPI names."""
    from mpi4py import MPI

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
