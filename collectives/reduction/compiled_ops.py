"""Reductions as machine code: pairs of C functions that compiled loops call.

A combiner is a pair of C functions over plain memory.  They are compiled by
Numba when first asked for, and kept on disk.  Results are bit for bit those of
`closeranks.collectives.reduction.op`: integers wrap around, a NaN in MIN or
MAX wins on either side, logical ops give 0 or 1, two half-precision numbers
are combined in float32 and rounded once; of more than two only the result is
rounded.  Complex products may differ in the last digit.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from closeranks.collectives.reduction.op import Mean, name_of
from closeranks.comms.buffers.datatype import is_of_numpy
from closeranks.comms.jit import code_cache

if TYPE_CHECKING:
    from mpi4py import MPI

_LOOPS = "closeranks.collectives.reduction.compiled_op_loops"
_ORDERED = "?bBhHiIlLqQfd"
_WHOLE = "bBhHiIlLqQ"
#: NumPy's characters of the types that each op is compiled for.
_TYPES: dict[str, str] = {
    "SUM": "bBhHiIlLqQfdFD",
    "PROD": "bBhHiIlLqQfdFD",
    "MIN": "bBhHiIlLqQfd",
    "MAX": "bBhHiIlLqQfd",
    "BAND": _WHOLE,
    "BOR": _WHOLE,
    "BXOR": _WHOLE,
    "LAND": "?" + _WHOLE,
    "LOR": "?" + _WHOLE,
    "LXOR": "?" + _WHOLE,
}
#: Ops of the half-precision types.
_HALVES = frozenset({"SUM", "PROD", "MIN", "MAX"})


class Combiner(NamedTuple):
    """C functions that combine ``n`` elements.

    Attributes
    ----------
    pair : int
        Address of ``void pair(const void *source, void *target, int64 n)``:
        ``target = source op target``.
    three : int
        Address of ``void three(const void *a, const void *b, void *out, int64
        n)``: ``out = a op b``; ``out`` overlaps neither.
    wide_pair, wide_three : int
        The same with a target of float32, for sums and products of
        half-precision types; else 0.
    narrow : int
        Address of ``void narrow(const float *source, void *target, int64 n)``,
        which rounds; else 0.
    """

    pair: int
    three: int
    wide_pair: int = 0
    wide_three: int = 0
    narrow: int = 0


def combiner(op: MPI.Op | Mean, dtype: np.dtype[Any]) -> Combiner | None:
    """Return the combiner of an op on a type.

    Local.  The first call for an op and a type compiles, or loads what was
    compiled before.

    Parameters
    ----------
    op : MPI.Op or Mean
        The reduction; `MEAN` adds.
    dtype : numpy.dtype
        The element, in the machine's byte order.

    Returns
    -------
    Combiner or None
        None where the op is the user's, or not defined on the type here.
    """
    return combiner_of("SUM" if isinstance(op, Mean) else name_of(op), np.dtype(dtype))


def is_sum_stored(dtype: str) -> bool:
    """Tell whether the disk holds the combiner of sums of a type, compiled.  Local."""
    parts = ("pair", "three")
    return all(code_cache.is_stored(_LOOPS, f"SUM.{dtype}.{part}") for part in parts)


@cache
def combiner_of(name: str | None, dtype: np.dtype[Any]) -> Combiner | None:
    """Return the combiner of an op by its name; see `combiner`.

    Parameters
    ----------
    name : str or None
        `Reducer.name`.
    dtype : numpy.dtype
        The element.
    """
    if name is None or not dtype.isnative:
        return None
    half = dtype.name in ("bfloat16", "float16")
    if not half and not is_of_numpy(dtype):
        return None
    if name not in _HALVES if half else dtype.char not in _TYPES[name]:
        return None
    parts = Combiner._fields if half and name in ("SUM", "PROD") else ("pair", "three")
    kind = f"{name}.{dtype.name}"
    return Combiner(*(code_cache.address_of(_LOOPS, f"{kind}.{part}") for part in parts))
