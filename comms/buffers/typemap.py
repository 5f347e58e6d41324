"""MPI datatypes as strided blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from mpi4py import MPI

from closeranks.comms.buffers.strided_block import StridedBlock, block

_keyval: int | None = None


def typemap(datatype: MPI.Datatype) -> StridedBlock | None:
    """Describe one entry of a datatype.

    Local.  The result is kept with the datatype, as an attribute that is deleted
    with it.

    Parameters
    ----------
    datatype : MPI.Datatype
        Any but the null type.

    Returns
    -------
    StridedBlock or None
        Its origin is the address that the type is used with.  None if its bytes
        are at no regular places (structures, uneven indices, darray).
    """
    global _keyval
    if datatype.is_predefined:
        return _decoded(datatype)
    if _keyval is None:
        _keyval = MPI.Datatype.Create_keyval()
    known: Any = datatype.Get_attr(_keyval)
    if known is None:
        known = (_decoded(datatype),)  # a tuple: Get_attr gives None for a missing one
        datatype.Set_attr(_keyval, known)
    found: StridedBlock | None = known[0]
    return found


def _decoded(datatype: MPI.Datatype) -> StridedBlock | None:
    """Take a datatype apart, down to the types that MPI names."""
    if datatype.is_predefined:
        size = datatype.Get_size()
        return block(0, (), size) if datatype.Get_true_extent() == (0, size) else None
    inner, combiner, given = datatype.decode()
    try:
        if "datatypes" in given:  # a structure: its types are beside its offsets
            return None
        entry = typemap(inner)
        make = _MAKERS.get(combiner)
        if entry is None or make is None:
            return None
        return make(entry, inner.Get_extent()[1], **given)
    finally:
        for one in {one.handle: one for one in (inner, *given.get("datatypes", ()))}.values():
            if not one.is_predefined and one.handle != datatype.handle:
                one.Free()


def _same(entry: StridedBlock, extent: int, /, **given: Any) -> StridedBlock:
    """Leave the bytes alone: DUP, and RESIZED, which only moves the next entry."""
    del extent, given
    return entry


def _vector(
    entry: StridedBlock, extent: int, count: int, blocklength: int = 1, stride: int | None = None
) -> StridedBlock:
    step = extent if stride is None else stride * extent
    return entry.repeated(blocklength, extent).repeated(count, step)


def _hvector(
    entry: StridedBlock, extent: int, count: int, blocklength: int, stride: int
) -> StridedBlock:
    return entry.repeated(blocklength, extent).repeated(count, stride)


def _subarray(
    entry: StridedBlock,
    extent: int,
    sizes: Sequence[int],
    subsizes: Sequence[int],
    starts: Sequence[int],
    order: int,
) -> StridedBlock:
    """Loop over a part of an array, the fastest index first."""
    axes = range(len(sizes)) if order == MPI.ORDER_F else reversed(range(len(sizes)))
    shift, stride = 0, extent
    for axis in axes:
        entry = entry.repeated(subsizes[axis], stride)
        shift += starts[axis] * stride
        stride *= sizes[axis]
    return entry.shifted(shift)


def _indexed(
    entry: StridedBlock,
    extent: int,
    displacements: Sequence[int],
    blocklength: int | None = None,
    blocklengths: Sequence[int] = (),
) -> StridedBlock | None:
    """Loop over blocks of equal length at equal distances; None if they are not."""
    return _hindexed(entry, extent, [one * extent for one in displacements],
                     blocklength, blocklengths)  # fmt: skip


def _hindexed(
    entry: StridedBlock,
    extent: int,
    displacements: Sequence[int],
    blocklength: int | None = None,
    blocklengths: Sequence[int] = (),
) -> StridedBlock | None:
    lengths = set(blocklengths) if blocklength is None else {blocklength}
    if not displacements or lengths == {0}:
        return block(0, (), 0)
    steps = {b - a for a, b in pairwise(displacements)}
    if len(lengths) > 1 or len(steps) > 1:
        return None
    each = entry.repeated(lengths.pop(), extent)
    step = steps.pop() if steps else 0
    return each.repeated(len(displacements), step).shifted(displacements[0])


_MAKERS: dict[str, Callable[..., StridedBlock | None]] = {
    "DUP": _same,
    "RESIZED": _same,
    "CONTIGUOUS": _vector,
    "VECTOR": _vector,
    "HVECTOR": _hvector,
    "SUBARRAY": _subarray,
    "INDEXED": _indexed,
    "HINDEXED": _hindexed,
    "INDEXED_BLOCK": _indexed,
    "HINDEXED_BLOCK": _hindexed,
}
