"""Collectives handed to the MPI library, with the caller's own arguments.

Where mpi4py cannot take a buffer (an array with gaps or on a device, a type it
has no name for), a packed copy goes in its place; `cr.MEAN` goes as SUM and is
divided.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import Any, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.collectives.arguments.call_key import UNSIZED
from closeranks.collectives.arguments.collective_call import CollectiveCall, divide
from closeranks.comms.buffers.array_memory import Bytes
from closeranks.comms.buffers.buffer_spec import Message, Vector
from closeranks.comms.gpu import cuda_aware
from closeranks.comms.mpi import messages
from closeranks.errors import UsageError

#: What mpi4py raises on buffers it cannot take, before anything is sent.
UNREADABLE = (AttributeError, BufferError, KeyError, TypeError, ValueError)
#: What the library spoils in place, blocking and otherwise, without us too: long messages of
#: Open MPI 5.0.11 whose counts differ get wrong blocks, and MPICH 5.0.2 aborts the job where
#: the block of a rank and its place overlap.
_NONE: Final = frozenset[str]()
_SPOILT: Final = {
    "Open MPI": (_NONE, frozenset({"alltoallv"})),
    "MPICH": (frozenset({"reduce_scatter"}), frozenset({"reduce_scatter"})),
}.get(MPI.get_vendor()[0], (_NONE, _NONE))


class Handover(NamedTuple):
    """What the library gets.

    Attributes
    ----------
    method : str
        Name of the method of `MPI.Intracomm`, without ``I`` or ``_init``.
    arguments : tuple
        What it is called with.
    finish : callable or None
        What is left to do when it is over.
    """

    method: str
    arguments: tuple[Any, ...]
    finish: Callable[[], None] | None


def spoilt(form: str) -> frozenset[str]:
    """Give the operations that are not to be left to the library in place.  Local.

    Parameters
    ----------
    form : str
        "" for blocking calls, "I" or "_init".
    """
    return _SPOILT[bool(form)]


def is_straight(demand: CollectiveCall) -> bool:
    """Tell whether the library reaches all that a call has on devices.  Local.

    Parameters
    ----------
    demand : CollectiveCall
        A blocking call: Open MPI's non-blocking reductions reach none.

    Returns
    -------
    bool
        False where nothing is on a device.
    """
    parts = [part for part in (demand.source, demand.target) if part is not None]
    return (
        demand.on_device
        and demand.divisor() == 1
        and all(_is_reachable(part) for part in parts)
        and cuda_aware.reaches_devices()
    )


def _is_reachable(part: Message | Vector) -> bool:
    """Whether the library could take a buffer as it is if it reached its memory."""
    is_whole = part.memory.contiguous if isinstance(part, Vector) else part.as_it_is
    return is_whole and part.element.datatype is not None


def hand_over(demand: CollectiveCall, *, straight: bool = False) -> Handover:
    """Say what the library is called with.  Local.

    Parameters
    ----------
    demand : CollectiveCall
        A call that the library can do (``demand.native is None``).
    straight : bool
        Give it device arrays too, where `is_straight`; waits for what the
        caller's streams still do to them.

    Returns
    -------
    Handover
        The caller's own arguments wherever mpi4py takes them.

    Raises
    ------
    UsageError
        If there are more entries than the library counts; local, nothing is sent.
    """
    method = demand.operation.capitalize()
    if demand.operation in UNSIZED:
        _check_counts(demand)
    if straight and is_straight(demand):
        _finish_streams(demand)
        return Handover(method, demand.arguments, None)
    unlike = demand.op is not None and are_unlike(demand)
    if not demand.foreign and not unlike and demand.divisor() == 1:
        return Handover(method, _shown(demand), None)
    arguments = list(demand.arguments)
    stored: Bytes | None = None
    source, target = demand.source, demand.target
    both = demand.in_place or source is target
    if method == "Bcast":
        part = source or target
        assert part is not None
        if part.foreign:
            stored = _contents(part) if part is source else _room(part)
            arguments[0] = _spec(part, stored)
        return Handover(method, tuple(arguments), _finish(demand, stored))
    if source is not None and (source.foreign or unlike) and not (both and target is not None):
        arguments[0] = _spec(source, source.data())
    if target is not None and target.foreign:
        whole = source if both and source is not None else target
        stored = _contents(whole) if both or method == "Exscan" else _room(whole)
        arguments[1] = _spec(whole, stored)
    elif target is not None and unlike:
        arguments[1] = _spec(target, target.data())
    if unlike:
        arguments[1][-1] = arguments[0][-1]
    return Handover(method, tuple(arguments), _finish(demand, stored))


def _shown(demand: CollectiveCall) -> tuple[Any, ...]:
    """Give the arguments; for objects that DLPack shows, the arrays that were read.

    So they are not exported again.
    """
    source, target = demand.source, demand.target
    is_first = source is not None and source.memory.is_exported
    is_second = target is not None and target.memory.is_exported
    if not (is_first or is_second):
        return demand.arguments
    arguments = list(demand.arguments)
    places = (0, 0) if demand.operation == "bcast" else (0, 1)
    for part, place in zip((source, target), places, strict=True):
        lies = None if part is None or not part.memory.is_exported else part.straight
        if part is not None and lies is not None and not (demand.in_place and source is not None):
            arguments[place] = _spec(part, lies)
    return tuple(arguments)


def are_unlike(demand: CollectiveCall) -> bool:
    """Tell whether mpi4py may see two types in a reduction that has one.

    Local.  It refuses these.  Where C has two names for a type, it has the one of
    NumPy, or of ctypes.

    Parameters
    ----------
    demand : CollectiveCall
        The call.

    Returns
    -------
    bool
        False where nothing is reduced.
    """
    source, target = demand.source, demand.target
    if demand.op is None or demand.in_place or source is None or target is None:
        return False
    codes = [_code(spec) for spec in demand.arguments[:2]]
    is_known = codes[0] is not None and codes[0] == codes[1]
    return not is_known and source.element.plain and target.element.plain


def _code(spec: Any) -> str | int | None:
    """Give what is the same where a type is the same to mpi4py, or None."""
    if isinstance(spec, (list, tuple)):
        last = spec[-1]
        if isinstance(last, MPI.Datatype):
            return last.handle
        return last if isinstance(last, str) else _code(spec[0])
    if isinstance(spec, np.ndarray):
        code: str = spec.dtype.char
        return code
    return spec.typecode if isinstance(spec, array) else None


def _check_counts(demand: CollectiveCall) -> None:
    """Refuse what the library cannot count, where no rank knows all sizes."""
    if MPI.Get_version() >= (4, 0):
        return
    for part in (demand.source, demand.target):
        if part is None:
            continue
        entries = int(part.counts.sum()) if isinstance(part, Vector) else part.count
        if messages.is_long(entries):
            raise UsageError(demand.operation, f"{entries} entries, and this library counts to "
                             f"{2 * messages.LONGEST - 1}",
                             "name a plan on all ranks, such as algorithm='linear'")  # fmt: skip


def _finish_streams(demand: CollectiveCall) -> None:
    """Wait for what the caller's streams do: the library knows no streams."""
    for part in (demand.source, demand.target):
        there = None if part is None else part.memory.device
        if there is not None:
            there.runtime.record(there.stream, there.device).synchronize()


def _room(part: Message | Vector) -> Bytes:
    """Make room for what a buffer will hold; of a device, nothing is fetched."""
    return _contents(part) if part.memory.device is None else part.space()


def _contents(part: Message | Vector) -> Bytes:
    """Copy what a buffer holds now: gaps are kept, and in-place input is there."""
    data = part.data()
    return data.copy() if part.direct else data


def _spec(part: Message | Vector, data: Bytes) -> list[Any]:
    """Describe packed data to mpi4py, in the type that the other ranks use.

    Libraries choose algorithms by counts and types: bytes here and numbers
    there would make them disagree.
    """
    datatype = part.element.datatype if part.element.plain else None
    if isinstance(part, Vector):
        counts = part.sizes if datatype is None else part.counts
        return [data, counts.tolist(), datatype or MPI.BYTE]
    return [data, datatype or MPI.BYTE]


def _finish(demand: CollectiveCall, stored: Bytes | None) -> Callable[[], None] | None:
    target, divisor = demand.target, demand.divisor()
    if target is None or (stored is None and divisor == 1):
        return None

    def finish() -> None:
        data = target.data() if stored is None else stored[: target.nbytes]
        if divisor != 1:
            divide(data, demand.dtype, divisor)
        if stored is not None:
            target.store(data)
        demand.settle()

    return finish


def ready(plain: MPI.Intracomm, given: Handover) -> Callable[[], object]:
    """Prepare a call of the library that waits.

    Parameters
    ----------
    plain : MPI.Intracomm
        Whose method is called.
    given : Handover
        With what.

    Returns
    -------
    callable
        Takes nothing.
    """
    call: Callable[[], object] = partial(getattr(plain, given.method), *given.arguments)
    if given.finish is None:
        return call
    finish = given.finish
    return lambda: (call(), finish())


def begin(plain: MPI.Intracomm, given: Handover, begun: list[MPI.Request]) -> None:
    """Agreed the library's non-blocking operation.

    Parameters
    ----------
    plain : MPI.Intracomm
        Whose method is called.
    given : Handover
        With what.
    begun : list of MPI.Request
        Gets the request, before the handler of a signal can raise: CPython runs
        none while only C is under way.  What is left to do is the caller's.
    """
    begun.extend(starmap(getattr(plain, f"I{given.method.lower()}"), (given.arguments,)))


def prepare(plain: MPI.Intracomm, given: Handover, info: MPI.Info) -> MPI.Prequest | None:
    """Make the library's persistent operation.  Collective.

    Parameters
    ----------
    plain : MPI.Intracomm
        Whose method is called.
    given : Handover
        With what.
    info : MPI.Info
        Hints.

    Returns
    -------
    MPI.Prequest or None
        None where the library has no persistent collectives: then each start is
        a call of its own.
    """
    try:
        make = getattr(plain, f"{given.method}_init")
        made: MPI.Prequest = make(*given.arguments, info=info)
    except NotImplementedError:
        return None
    return made


def is_idle(operation: MPI.Prequest) -> bool:
    """Tell whether the library takes an operation for one that is not under way.

    Local.

    Parameters
    ----------
    operation : MPI.Prequest
        The library's own, which has not been started.

    Returns
    -------
    bool
        True by the standard.  MPICH 5.0 takes what was never started for
        unfinished, in ``Waitall`` and ``Testall``.
    """
    return bool(MPI.Request.Testall([operation]))


def pack_again(demand: CollectiveCall, given: Handover) -> None:
    """Bring packed copies up to date with what the caller's arrays hold now.  Local.

    Parameters
    ----------
    demand : CollectiveCall
        The call.
    given : Handover
        What `hand_over` made of it before; not in use.
    """
    for kept, now in zip(given.arguments, hand_over(demand).arguments, strict=True):
        if kept is not now and kept[0].ctypes.data != now[0].ctypes.data:
            np.copyto(kept[0], now[0])  # else it is the caller's own memory


def agreed_max(plain: MPI.Intracomm, numbers: list[float]) -> list[float]:
    """Return the largest of each number over all ranks.  Collective.

    Parameters
    ----------
    plain : MPI.Intracomm
        The ranks.
    numbers : list of float
        As many on every rank.

    Returns
    -------
    list of float
        The same on every rank.
    """
    agreed = np.array(numbers)
    plain.Allreduce(MPI.IN_PLACE, agreed, op=MPI.MAX)
    return [float(number) for number in agreed]
