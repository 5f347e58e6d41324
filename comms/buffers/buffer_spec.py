"""Buffer specifications, read the way mpi4py reads them.

A message is ``buffer``, ``[buffer, count]``, ``[buffer, type]``, ``[buffer,
count, type]``, ``[buffer, (count, displacement), type]`` or ``[buffer, count,
displacement, type]``.  Unlike mpi4py, `message` refuses a count that is too
large for the buffer.

A vector has one block for each rank, of different sizes: ``buffer`` (cut as
evenly as possible), ``[buffer, counts]``, ``[buffer, (counts,
displacements)]``, with a type as an optional last part.  A single number
stands for equal counts, or for the distance between blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.buffers.array_memory import ArrayMemory, Bytes, memory
from closeranks.comms.buffers.datatype import OF_DTYPE, Element, element
from closeranks.comms.buffers.pack_entries import pack_memory, room, unpack
from closeranks.comms.gpu.pinned_staging import Span, fetch, put
from closeranks.comms.mpi import messages
from closeranks.errors import UsageError, WrongType

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.comms.gpu.device_array import Event


Spec = Any
#: Buffer of a rank that sends nothing, for None in a list.
_NOTHING: Final = np.empty(0, np.uint8)


class SpecParts(NamedTuple):
    """A specification taken apart, nothing checked yet.

    Attributes
    ----------
    buffer : object
        The array.
    count, displacement : object
        As given, else None.
    datatype : MPI.Datatype, str or None
        As given, else None.
    """

    buffer: object
    count: Any = None
    displacement: Any = None
    datatype: MPI.Datatype | str | None = None


@dataclass(init=False, eq=False, slots=True)
class Message:
    """Entries at one place of a buffer; nothing is changed after it is made.

    Attributes
    ----------
    memory : ArrayMemory
        The buffer.
    element : Element
        An entry of the buffer.
    count : int
        Entries, over all blocks.
    offset : int
        Bytes from the start of the buffer to the first entry.
    nbytes : int
        Bytes of the data: the weight of the type signature.
    as_it_is : bool
        Whether the data lie side by side where the caller has them, in host
        memory or on a device.
    straight : ndarray of uint8 or None
        The data in the caller's memory; None where they do not lie side by
        side there, or where only a device can reach them.
    """

    memory: ArrayMemory
    element: Element
    count: int
    offset: int
    nbytes: int
    as_it_is: bool
    straight: Bytes | None = field(repr=False)

    def __init__(self, memory: ArrayMemory, element: Element, count: int, offset: int) -> None:
        self.memory, self.element, self.count, self.offset = memory, element, count, offset
        self.nbytes = nbytes = count * element.nbytes
        self.as_it_is = memory.contiguous and element.plain
        self.straight = None
        if self.as_it_is and memory.device is None:
            is_all = offset == 0 and nbytes == memory.nbytes
            self.straight = memory.data if is_all else memory.data[offset : offset + nbytes]

    @property
    def place(self) -> tuple[Any, ...] | None:
        """Identity of the data's place in memory; None if only MPI knows."""
        if not self.element.plain:
            return None
        data = self.memory.data
        return data.ctypes.data, data.shape, data.strides, self.offset, self.nbytes

    @property
    def foreign(self) -> bool:
        """Whether mpi4py cannot take the buffer: no type, gaps, or on a device."""
        memory = self.memory
        return not memory.contiguous or self.element.datatype is None or memory.device is not None

    @property
    def direct(self) -> bool:
        """Whether the data lie side by side in the caller's memory."""
        return self.straight is not None

    def data(self, later: list[Event] | None = None) -> Bytes:
        """Give the data side by side: the caller's memory, or a copy.

        Parameters
        ----------
        later : list of Event, optional
            Takes events of a device after which the copy is complete; without it the
            host waits.

        Returns
        -------
        ndarray of uint8
            Of length ``nbytes``.
        """
        if self.straight is not None:
            return self.straight
        out = room(self.memory, self.nbytes)
        pack_memory(self.memory, self.element, self.count, self.offset, out, later)
        return out

    def space(self) -> Bytes:
        """Give room for the data: the caller's memory, or new memory."""
        return room(self.memory, self.nbytes) if self.straight is None else self.straight

    def store(self, data: Bytes) -> None:
        """Put data into the caller's memory; nothing to do where they are there."""
        if self.straight is not None:
            if self.straight.ctypes.data != data.ctypes.data:
                self.straight[:] = data
        else:
            unpack(data, self.memory, self.element, self.count, self.offset)


def take_apart(spec: Spec, operation: str, *, vector: bool = False) -> SpecParts:
    """Take a specification apart.

    Local.

    Parameters
    ----------
    spec : buffer or sequence
        As the caller passed it.
    operation : str
        The call, for the text of an error.
    vector : bool
        Whether counts may be sequences, so that only a tuple is (counts,
        displacements).

    Returns
    -------
    SpecParts
        Its parts.

    Raises
    ------
    UsageError
        If there are fewer than two parts or more than four.
    """
    if not isinstance(spec, (list, tuple)):
        return SpecParts(spec)
    count = displacement = datatype = None
    match len(spec):
        case 2:
            buffer, count = spec
            if _is_datatype(count):
                count, datatype = None, count
        case 3:
            buffer, count, datatype = spec
        case 4:
            buffer, count, displacement, datatype = spec
        case parts:
            raise UsageError(
                operation,
                f"a message of {parts} parts",
                "pass an array, [array, type] or [array, count, type]",
            )
    pair = tuple if vector else (tuple, list)
    if len(spec) < 4 and isinstance(count, pair):
        if len(count) != 2:
            raise UsageError(
                operation,
                f"{len(count)} numbers where (count, displacement) stands",
                "pass two, or a list of counts",
            )
        count, displacement = count
    return SpecParts(_NOTHING if buffer is None else buffer, count, displacement, datatype)


def message(spec: Spec, operation: str, *, blocks: int = 1, writable: bool = False) -> Message:
    """Read the specification of one message.

    Local.

    Parameters
    ----------
    spec : buffer or sequence
        As the caller passed it.
    operation : str
        The call, for the text of an error.
    blocks : int
        Number of equal blocks; an explicit count is the count of one block.
    writable : bool
        Whether it will be written.

    Returns
    -------
    Message
        Nothing is copied.

    Raises
    ------
    UsageError
        If the specification cannot be read or asks for more than the buffer
        holds.
    """
    if type(spec) is np.ndarray:  # the usual one, which says all by itself
        dtype, flags = spec.dtype, spec.flags
        known = OF_DTYPE.get(dtype)
        is_plain = flags.c_contiguous and spec.ndim and not dtype.hasobject
        if known is not None and is_plain and (flags.writeable or not writable):
            count, flat = spec.size, spec if spec.ndim == 1 else spec.reshape(-1)
            if spec.nbytes and count % blocks == 0 and known.extent == dtype.itemsize:
                whole = ArrayMemory(flat.view(np.uint8), dtype, spec.nbytes, True)
                return Message(whole, known, count, 0)
    parts = take_apart(spec, operation)
    found = found_memory(parts.buffer, operation, writable=writable)
    kind = element(parts.datatype, found.dtype, operation)
    shift = 0
    if not found.contiguous:
        _fits_gaps(found, kind, operation)
    if parts.displacement is not None:
        shift = _number(parts.displacement, "displacement", operation) * kind.extent
    if parts.count is None:
        count = _inferred(found.nbytes - shift, kind, blocks, operation)
    else:
        count = _number(parts.count, "count", operation) * blocks
        check_room(found, kind, count, shift, operation)
    return Message(found, kind, count, shift)


def found_memory(buffer: object, operation: str, *, writable: bool) -> ArrayMemory:
    """Find the memory of a buffer; MPI.BOTTOM and None have none.  Local.

    Parameters
    ----------
    buffer : object
        The array.
    operation : str
        The call, for the text of an error.
    writable : bool
        Whether it will be written.

    Returns
    -------
    ArrayMemory
        Nothing is copied.

    Raises
    ------
    UsageError
        If there is no such memory.
    """
    if buffer is None or isinstance(buffer, int):
        name = "None" if buffer is None else repr(buffer).rsplit(".", maxsplit=1)[-1]
        raise UsageError(
            operation,
            f"{name} where a buffer is needed",
            "pass an array; MPI.BOTTOM needs algorithm='native'",
        )
    return memory(buffer, operation, writable=writable)


def check_room(found: ArrayMemory, kind: Element, count: int, shift: int, operation: str) -> None:
    """Raise UsageError if ``count`` entries from byte ``shift`` leave the buffer.

    Parameters
    ----------
    found : ArrayMemory
        The buffer.
    kind : Element
        An entry of the buffer.
    count : int
        Number of entries.
    shift : int
        Bytes from the start of the buffer to the first entry.
    operation : str
        The call, for the text of an error.
    """
    if not count:
        return
    low = shift + kind.true_lower + min(0, (count - 1) * kind.extent)
    high = shift + kind.true_upper + max(0, (count - 1) * kind.extent)
    if low < 0 or high > found.nbytes:
        problem = f"{count} entries of {kind} take bytes {low} to {high} of {found.nbytes}"
        raise UsageError(operation, problem, "pass a larger buffer or a smaller count")


def _is_datatype(value: object) -> bool:
    return isinstance(value, (str, _datatype_class()))


@cache
def _datatype_class() -> type[MPI.Datatype]:
    from mpi4py import MPI

    return MPI.Datatype


def _number(value: Any, name: str, operation: str) -> int:
    """Read a count or a displacement; None is 0."""
    if value is None:
        return 0
    try:
        number = index(value)
    except TypeError as error:
        raise WrongType(operation, f"{name} {value!r} is no integer", "pass an int") from error
    if number < 0:
        raise UsageError(operation, f"{name} {number} is negative", "pass 0 or more")
    return number


def _fits_gaps(found: ArrayMemory, kind: Element, operation: str) -> None:
    """Refuse an array with gaps counted in anything but its own elements."""
    if kind.extent != found.dtype.itemsize:
        raise UsageError(
            operation,
            f"an array with gaps cannot be counted in {kind}",
            "pass numpy.ascontiguousarray(x)",
        )


def _inferred(nbytes: int, kind: Element, blocks: int, operation: str) -> int:
    """Tell how many entries a buffer holds."""
    if nbytes <= 0:
        return 0
    if kind.extent <= 0 or nbytes % kind.extent:
        raise UsageError(
            operation,
            f"{nbytes} bytes hold no whole number of {kind}, {kind.extent} bytes each",
            "pass a count",
        )
    count = nbytes // kind.extent
    if blocks > 1 and count % blocks:
        problem = f"{count} entries do not divide into {blocks} blocks, one a rank"
        raise UsageError(operation, problem, f"pass a multiple of {blocks}, or a count")
    return count


Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Vector:
    """Blocks of entries at places of a buffer.

    Attributes
    ----------
    memory : ArrayMemory
        The buffer.
    element : Element
        An entry of the buffer.
    counts, displacements : ndarray of int64
        Entries of each block, and where it starts, in entries.
    """

    memory: ArrayMemory
    element: Element
    counts: Counts
    displacements: Counts

    @property
    def sizes(self) -> Counts:
        """Bytes of the data of each block."""
        return self.counts * self.element.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of the data of all blocks."""
        return int(self.counts.sum()) * self.element.nbytes

    @property
    def place(self) -> tuple[Any, ...] | None:
        """Identity of the data's place in memory; None if only MPI knows."""
        if not self.element.plain:
            return None
        data, blocks = self.memory.data, (self.displacements.tobytes(), self.sizes.tobytes())
        return data.ctypes.data, data.shape, data.strides, self.element.extent, *blocks

    @property
    def foreign(self) -> bool:
        """Whether mpi4py cannot take the buffer: no type, gaps, far away, or on a device."""
        memory = self.memory
        is_odd = not memory.contiguous or self.element.datatype is None
        return is_odd or memory.device is not None or self._is_far

    @property
    def _is_far(self) -> bool:
        """Whether blocks begin beyond the library's counts; packing may mend that."""
        if not messages.is_long(self.memory.nbytes) or not self.element.plain:
            return False
        return messages.is_long(int(self.displacements.max(initial=0)))

    @property
    def straight(self) -> Bytes | None:
        """The data in the caller's memory, where they lie side by side, in rank order."""
        return self.memory.data[: self.nbytes] if self.direct else None

    @property
    def direct(self) -> bool:
        """Whether the data lie side by side, in rank order, in the caller's memory."""
        if not (self.memory.contiguous and self.element.plain) or self.memory.device is not None:
            return False
        packed = np.cumsum(self.counts) - self.counts
        return bool(((self.displacements == packed) | (self.counts == 0)).all())

    def data(self, later: list[Event] | None = None) -> Bytes:
        """Give the data side by side: the caller's memory, or a copy.

        Parameters
        ----------
        later : list of Event, optional
            As of `closeranks.comms.buffers.buffer_spec.Message.data`.

        Returns
        -------
        ndarray of uint8
            Of length ``nbytes``.
        """
        if self.direct:
            return self.memory.data[: self.nbytes]
        out = room(self.memory, self.nbytes)
        if self.memory.device is not None and self.element.plain:
            fetch(self.memory.device, self._spans(), out, later)
            return out
        for place, (count, first) in self._blocks():
            self._collect(out[place], count, first)
        return out

    def space(self) -> Bytes:
        """Give room for the data: the caller's memory, or new memory."""
        return self.memory.data[: self.nbytes] if self.direct else room(self.memory, self.nbytes)

    def store(self, data: Bytes) -> None:
        """Put data into the caller's memory; no-op for the memory itself."""
        if self.direct:
            if self.memory.data.ctypes.data != data.ctypes.data:
                self.memory.data[: self.nbytes] = data
            return
        if self.memory.device is not None and self.element.plain:
            put(self.memory.device, self._spans(), data)
            return
        for place, (count, first) in self._blocks():
            self._fill(data[place], count, first)

    def _blocks(self) -> list[tuple[slice, tuple[int, int]]]:
        """Pair the place of each block among packed bytes with (count, displacement)."""
        ends = np.cumsum(self.sizes).tolist()
        pairs = zip(self.counts.tolist(), self.displacements.tolist(), strict=True)
        starts = [0, *ends[:-1]]
        return [
            (slice(start, end), pair)
            for start, end, pair in zip(starts, ends, pairs, strict=True)
            if pair[0]
        ]

    def _spans(self) -> list[Span]:
        """List the copies between the packed bytes and a device array."""
        extent = self.element.extent
        return [
            Span(first * extent, place.start, place.stop - place.start)
            for place, (_, first) in self._blocks()
        ]

    def _collect(self, out: Bytes, count: int, first: int) -> None:
        kind, extent = self.element, self.element.extent
        if self.memory.contiguous and kind.plain:
            out[:] = self.memory.data[first * extent : (first + count) * extent]
        else:
            pack_memory(self.memory, kind, count, first * extent, out)

    def _fill(self, data: Bytes, count: int, first: int) -> None:
        kind, extent = self.element, self.element.extent
        if self.memory.contiguous and kind.plain:
            self.memory.data[first * extent : (first + count) * extent] = data
        else:
            unpack(data, self.memory, kind, count, first * extent)


def vector(spec: Spec, operation: str, blocks: int, *, writable: bool = False) -> Vector:
    """Read the specification of a vector message.

    Local.

    Parameters
    ----------
    spec : buffer or sequence
        As the caller passed it.
    operation : str
        The call, for the text of an error.
    blocks : int
        Number of blocks: the size of the communicator.
    writable : bool
        Whether it will be written.

    Returns
    -------
    Vector
        Nothing is copied.

    Raises
    ------
    UsageError
        If the specification cannot be read or asks for more than the buffer
        holds.
    """
    parts = take_apart(spec, operation, vector=True)
    found = found_memory(parts.buffer, operation, writable=writable)
    kind = element(parts.datatype, found.dtype, operation)
    if not found.contiguous and kind.extent != found.dtype.itemsize:
        raise UsageError(operation, f"an array with gaps cannot be counted in {kind}",
                         "pass numpy.ascontiguousarray(x)")  # fmt: skip
    counts = _counts(parts.count, found, kind, blocks, operation)
    displacements = _displacements(parts.displacement, counts, blocks, operation)
    _check(found, kind, counts, displacements, operation)
    return Vector(found, kind, counts, displacements)


def numbers(given: Any, blocks: int, name: str, operation: str) -> Counts:
    """Read ``blocks`` integers, all at least 0.

    Parameters
    ----------
    given : array_like of int
        As the caller passed it.
    blocks : int
        How many there must be.
    name : str
        The argument, for the text of an error.
    operation : str
        The call, for the text of an error.

    Returns
    -------
    ndarray of int64
        Shape (blocks,).

    Raises
    ------
    UsageError
        If their number is wrong, or one is negative or no integer.
    """
    array = np.asarray(given)
    if array.size and array.dtype.kind not in "iu":
        raise WrongType(operation, f"{name} of type {array.dtype}", "pass integers")
    if array.size != blocks:
        raise UsageError(operation, f"{array.size} {name} for {blocks} ranks",
                         f"pass {blocks} of them")  # fmt: skip
    found = array.reshape(-1).astype(np.int64)
    if found.size and found.min() < 0:
        raise UsageError(operation, f"{name} {int(found.min())} is negative", "pass 0 or more")
    return found


def _counts(given: Any, found: ArrayMemory, kind: Element, blocks: int, operation: str) -> Counts:
    if given is None:
        if kind.extent <= 0 or found.nbytes % kind.extent:
            raise UsageError(operation, f"{found.nbytes} bytes hold no whole number of {kind}, "
                             f"{kind.extent} bytes each", "pass counts")  # fmt: skip
        total = found.nbytes // kind.extent
        return total // blocks + (np.arange(blocks) < total % blocks).astype(np.int64)
    if _is_number(given):
        return numbers([index(given)] * blocks, blocks, "counts", operation)
    return numbers(given, blocks, "counts", operation)


def _displacements(given: Any, counts: Counts, blocks: int, operation: str) -> Counts:
    if given is None:
        return np.cumsum(counts) - counts
    if _is_number(given):
        return np.arange(blocks, dtype=np.int64) * index(given)
    return numbers(given, blocks, "displacements", operation)


def _is_number(given: Any) -> bool:
    """Tell whether one number stands for all, as mpi4py does."""
    return hasattr(given, "__index__") and not isinstance(given, np.ndarray)


def _check(
    found: ArrayMemory, kind: Element, counts: Counts, displacements: Counts, operation: str
) -> None:
    """Refuse blocks that leave the buffer."""
    ends = np.where(counts > 0, displacements + counts, 0)
    if ends.size:
        last = int(ends.argmax())
        count, first = int(counts[last]), int(displacements[last])
        check_room(found, kind, count, first * kind.extent, f"{operation}, block {last}")
