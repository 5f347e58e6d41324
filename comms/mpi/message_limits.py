"""How long a message may be: MPI counts by numbers of 32 bits.

Both ends of a message cut it alike, for both know its length, or see where it
ends; and MPI keeps messages of one tag in order.
"""

from __future__ import annotations

#: The longest message, in bytes; tests make it shorter, so it is read at each use.
LONGEST: int = 1 << 30


def cut(nbytes: int, longest: int | None = None) -> list[slice]:
    """Cut a message whose length both ends know.

    Local.

    Parameters
    ----------
    nbytes : int
        Its length.
    longest : int, optional
        The longest piece; `LONGEST` if not given.

    Returns
    -------
    list of slice
        One at least.
    """
    step = longest or LONGEST
    return [slice(low, min(low + step, nbytes)) for low in range(0, max(nbytes, 1), step)]


def cut_openly(nbytes: int) -> list[slice]:
    """Cut a message whose length its receiver may not know.

    Local.  Whoever meets a piece of `LONGEST` bytes knows that another one
    follows: the last one is shorter, and may be empty.

    Parameters
    ----------
    nbytes : int
        Its length.

    Returns
    -------
    list of slice
        One at least.
    """
    ends = [*range(LONGEST, nbytes + 1, LONGEST), nbytes]
    return [slice(low, high) for low, high in zip([0, *ends], ends, strict=False)]


def is_long(nbytes: int) -> bool:
    """Tell whether a collective is too long for the library: counts reach 2^31.

    Local.

    Parameters
    ----------
    nbytes : int
        Of all blocks of the call, as all ranks know them.
    """
    return nbytes >= 2 * LONGEST
