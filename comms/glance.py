"""Sizes of plain buffer specifications, told at a glance.

For calls where every microsecond counts. What these cannot tell at a glance
raises AttributeError, TypeError or ValueError; the caller then reads the
specification in full, where errors are explained: `closeranks.comms.message`
and `closeranks.comms.vector`.
"""

from __future__ import annotations

from operator import add
from typing import Any


def blocks(spec: Any, rank: int, size: int) -> tuple[int, int]:
    """Tell the bytes of ``[buffer, counts]``, displacements and type if given.

    Local.

    Parameters
    ----------
    spec : sequence
        A vector message, counts in a list or an array.
    rank : int
        Whose block is asked for.
    size : int
        Number of blocks there must be.

    Returns
    -------
    own, total : int
        Of the rank's block and of all blocks, which all lie inside the buffer.

    Raises
    ------
    AttributeError, TypeError, ValueError
        If it is of another form, or wrong.
    """
    buffer, counts, *rest = spec
    unit = buffer.itemsize
    places = None
    if rest:
        *between, kind = rest
        unit = kind.extent
        if kind.size != unit or len(between) > 1:
            raise ValueError("gaps between entries")
        if between:
            places = between[0]
    if type(counts) is tuple:
        counts, places = counts
    counts = _listed(counts, size)
    total = sum(counts)
    if places is None:
        end = total
    else:
        places = _listed(places, size)
        end = max(map(add, counts, places))
    if end * unit > buffer.nbytes:
        raise ValueError("blocks beyond the end of the buffer")
    return counts[rank] * unit, total * unit


def _listed(numbers: Any, size: int) -> list[int]:
    """Give ``size`` numbers, none of them negative, as a list."""
    listed: list[int] = numbers if type(numbers) is list else numbers.tolist()
    if len(listed) != size or min(listed) < 0:
        raise ValueError("not one number, 0 or more, for each rank")
    return listed
