"""Messages of half-precision numbers that travel as float32.

`Widened` looks like a message of float32 with data outside the caller's
memory.  Code that packs, sends and stores it widens and rounds unaware.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from closeranks.comms.buffers.array_memory import Bytes
from closeranks.comms.buffers.buffer_spec import Message
from closeranks.comms.buffers.datatype import element

if TYPE_CHECKING:
    from closeranks.comms.gpu.device_array import Event

#: Types, by NumPy's name, that lose digits in sums.
HALVES: Final = frozenset({"float16", "bfloat16"})
WIDE: Final = np.dtype(np.float32)


@dataclass(init=False, eq=False, slots=True)
class Widened(Message):
    """Entries of float32 that stand for entries of half precision.

    Made by `widened`.

    Attributes
    ----------
    narrow : Message
        The caller's entries.
    """

    narrow: Message

    def __init__(self, narrow: Message) -> None:
        wide = element(None, WIDE, "widen")
        Message.__init__(self, narrow.memory, wide, narrow.count, narrow.offset)
        self.narrow = narrow
        self.as_it_is, self.straight = False, None  # the data that are sent are wider

    @property
    def foreign(self) -> bool:
        """True: mpi4py would take the caller's buffer, which is narrower."""
        return True

    def data(self, later: list[Event] | None = None) -> Bytes:  # noqa: ARG002
        """Give a widened copy of the data; the host waits for them."""
        return self.narrow.data().view(self._half).astype(WIDE).view(np.uint8)

    def space(self) -> Bytes:
        """Give room for the widened data: new memory."""
        return np.empty(self.nbytes, np.uint8)

    def store(self, data: Bytes) -> None:
        """Round data, to the nearest, ties to even, into the caller's memory."""
        place = self.narrow.space()
        with np.errstate(all="ignore"):  # no warning of overflow, as in MPI
            np.copyto(place.view(self._half), data.view(WIDE), casting="unsafe")
        self.narrow.store(place)

    @property
    def _half(self) -> np.dtype[Any]:
        """Type of the caller's entries."""
        assert self.narrow.element.dtype is not None
        return self.narrow.element.dtype


def widened(narrow: Message) -> Widened:
    """Let a message of half-precision numbers travel in float32.

    Local; nothing is copied.

    Parameters
    ----------
    narrow : Message
        Entries of one of `HALVES`.

    Returns
    -------
    Widened
        As many entries.
    """
    return Widened(narrow)
