"""Sizes of vector messages, told at a glance.

For calls where every microsecond counts. What cannot be told at a glance
raises AttributeError, TypeError or ValueError; the caller then reads the
specification in full, where errors are explained: `closeranks.comms.vector`.
"""

from __future__ import annotations

from operator import add
from typing import Any


class Glance:
    """What is known of a vector message, the last one that was read.

    Most calls repeat the one before; then comparing these attributes with the
    call's is all there is to do.  A communicator keeps one for what it sends
    and one for what it receives.

    Parameters
    ----------
    rank : int
        Whose block is asked for.
    size : int
        Number of blocks a message must have.

    Attributes
    ----------
    room : int
        Bytes of the buffer.
    dtype : numpy.dtype or None
        Type of the buffer; None before the first message.
    counts : list of int or None
        A copy of its counts, if they were a list and nothing followed them.
    own, total : int
        Bytes of the rank's block and of all blocks, which all lie inside the
        buffer.
    """

    __slots__ = ("_rank", "_size", "counts", "dtype", "own", "room", "total")

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self.dtype: Any = None
        self.counts: list[int] | None = None
        self.room = self.own = self.total = 0

    def read(self, spec: Any) -> None:
        """Read ``[buffer, counts]``, displacements and type if given.  Local.

        Parameters
        ----------
        spec : sequence
            A vector message, counts in a list or an array.

        Raises
        ------
        AttributeError, TypeError, ValueError
            If it is of another form, or wrong; what was known stays.
        """
        if not isinstance(spec, (list, tuple)):
            raise TypeError("no counts")  # rows of an array are no parts
        buffer, counts, *rest = spec
        places, unit = None, buffer.itemsize
        if rest:
            *between, kind = rest
            unit = kind.extent
            if kind.size != unit or len(between) > 1:
                raise ValueError("gaps between entries")
            if between:
                places = between[0]
        if type(counts) is tuple:
            counts, places = counts
        counts = _listed(counts, self._size)
        end = total = sum(counts)
        if places is not None:
            end = max(map(add, counts, _listed(places, self._size)))
        if end * unit > buffer.nbytes:
            raise ValueError("blocks beyond the end of the buffer")
        self.own, self.total = counts[self._rank] * unit, total * unit
        self.room, self.dtype = buffer.nbytes, buffer.dtype
        self.counts = None if rest or places else counts.copy()

    def fits(self, spec: Any, own: Any) -> bool:
        """Tell whether the rank's block of a message is as long as a buffer.  Local.

        Parameters
        ----------
        spec : sequence
            A vector message; errors as in `read`.
        own : array
            The buffer.

        Returns
        -------
        bool
            And all blocks lie inside theirs.
        """
        if (
            len(spec) != 2
            or type(spec[1]) is not list
            or spec[1] != self.counts
            or spec[0].nbytes != self.room
            or spec[0].dtype is not self.dtype
        ):
            self.read(spec)
        return bool(self.own == own.nbytes)


def _listed(numbers: Any, size: int) -> list[int]:
    """Give ``size`` numbers, none of them negative, as a list."""
    listed: list[int] = numbers if type(numbers) is list else numbers.tolist()
    if len(listed) != size or min(listed) < 0:
        raise ValueError("not one number, 0 or more, for each rank")
    return listed
