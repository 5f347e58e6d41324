"""Gradients in buckets: combined while the next ones are computed.

Arrays of one type are put side by side in buckets of about equal size, the
last array first, since a backward pass makes the last layer's gradient first.
As soon as all arrays of a bucket are ready it is on its way.  Buckets start in
one fixed order on all ranks, whatever the order in which they become ready,
since MPI wants collectives in one order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.dispatch.argument_check import agree_equal
from closeranks.collectives.reduction.op import Mean, title
from closeranks.collectives.selection.call_options import AUTO
from closeranks.comms import argument
from closeranks.comms.exit import forked_child
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.dispatch.persistent_operation import Persistent

Array = NDArray[Any]


@dataclass
class _Bucket:
    """Arrays that travel together."""

    names: list[str]
    room: Array
    operation: Persistent
    missing: set[str]


class Buckets:
    """Arrays that are combined over all ranks, a bucket at a time.

    Made by `Communicator.bucketed`, on every rank.  In each round every rank
    calls `ready` once for every name, then `wait`.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    parameters : mapping of str to ndarray
        The arrays.
    bucket_bytes : int
        Bytes of a bucket, at least 1; a larger array is a bucket of its own.
    op : MPI.Op or Mean
        The reduction.
    """

    CALLS_IN_CHILD = frozenset({"close"})

    def __init__(
        self,
        comm: Communicator,
        parameters: Mapping[str, Array],
        bucket_bytes: int,
        op: MPI.Op | Mean,
    ) -> None:
        problem, remedy = _refused(parameters, bucket_bytes, op)
        said = problem
        if not problem:
            arrays = [(name, array.shape, str(array.dtype)) for name, array in parameters.items()]
            said = f"arrays {arrays}, bucket_bytes {bucket_bytes}, op {title(op)}"
        agree_equal(comm.membership.service.careful, "bucketed", said)
        if problem:
            raise UsageError("bucketed", problem, remedy)
        self._arrays: dict[str, Array] = {k: np.ma.getdata(v) for k, v in parameters.items()}
        self._buckets = [
            self._bucket(comm, names, op) for names in packed(self._arrays, bucket_bytes)
        ]
        self._bucket_of = {name: b for b in self._buckets for name in b.names}
        self._next = 0
        self._comm, self._epoch = comm, comm.epoch
        forked_child.guard_object(self)

    def __len__(self) -> int:
        return len(self._buckets)

    def _bucket(self, comm: Communicator, names: list[str], op: MPI.Op | Mean) -> _Bucket:
        """Make room for a bucket and its operation."""
        arrays = [self._arrays[name] for name in names]
        room = np.empty(sum(array.size for array in arrays), arrays[0].dtype)
        given = MPI.IN_PLACE, room, op
        service = comm.membership.service
        operation = service.prepare("allreduce", AUTO, *given, shown=False)
        return _Bucket(names, room, operation, set(names))

    def ready(self, name: str) -> None:
        """Say that an array is final on this rank.

        Local; the array is copied and may be read, not written, until `wait`.

        Parameters
        ----------
        name : str
            One of the names given at the start.

        Raises
        ------
        UsageError
            If there is no such array, or it was ready before (local).
        """
        self._notice_recovery()
        bucket = self._bucket_of.get(name) if isinstance(name, Hashable) else None
        if bucket is None:
            names = ", ".join(map(str, self._arrays))
            raise UsageError("ready", f"no array {argument.shown(name)}", f"one of {names}")
        if name not in bucket.missing:
            raise UsageError("ready", f"{name!r} is ready twice", "call wait() after each round")
        start = 0
        for other in bucket.names:
            array = self._arrays[other]
            if other == name:
                bucket.room[start : start + array.size] = array.reshape(-1)
                break
            start += array.size
        bucket.missing.discard(name)
        self._start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for all buckets and put the results into the arrays.

        Parameters
        ----------
        timeout_s : float, optional
            Patience for each bucket in seconds; None waits as long as it takes.

        Raises
        ------
        UsageError
            If an array is not ready yet, or not since a recovery (local).
        TimeoutError
            After ``timeout_s``; `wait` again.
        """
        self._notice_recovery()
        missing = [name for name in self._arrays if name in self._bucket_of[name].missing]
        if missing:
            raise UsageError("wait", f"not ready: {', '.join(missing)}", "call ready() for them")
        for bucket in self._buckets:
            bucket.operation.wait(timeout_s)
        self._comm.keep(*self._arrays.values())
        for bucket in self._buckets:
            start = 0
            for name in bucket.names:
                array = self._arrays[name]
                array[...] = bucket.room[start : start + array.size].reshape(array.shape)
                start += array.size
            bucket.missing = set(bucket.names)
        self._next = 0

    def _notice_recovery(self) -> None:
        """Begin the round anew where a recovery has ended it."""
        if self._epoch != self._comm.epoch:
            self._epoch, self._next = self._comm.epoch, 0
            for bucket in self._buckets:
                bucket.missing = set(bucket.names)

    def close(self) -> None:
        """Let go of the buckets.  Local; harmless twice."""
        for bucket in self._buckets:
            bucket.operation.close()

    def _start(self) -> None:
        """Start every bucket whose turn it is and whose arrays are all ready."""
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            bucket = self._buckets[self._next]
            bucket.operation.start()
            self._next += 1


def _refused(parameters: Any, bucket_bytes: int, op: object) -> tuple[str, str]:
    """Say what cannot be put into buckets, and the way out; nothing if all can."""
    if not isinstance(parameters, Mapping):
        return f"parameters are {argument.shown(parameters)}", "give name -> array"
    try:
        argument.whole("bucketed", "bucket_bytes", bucket_bytes, least=1)
    except UsageError as wrong:
        return wrong.problem, wrong.remedy
    if not isinstance(op, (MPI.Op, Mean)):
        return f"op {argument.shown(op)} is no reduction", "an MPI.Op or closeranks.MEAN"
    for name, array in parameters.items():
        if not isinstance(array, np.ndarray):
            problem = f"{name!r} is a {type(array).__name__}"
            return problem, "pass NumPy arrays, or call Iallreduce for each"
        if not array.flags.writeable:
            return f"{name!r} is read-only", "pass arrays that results can be put into"
    return "", ""


def packed(arrays: Mapping[str, Array], bucket_bytes: int) -> list[list[str]]:
    """Put names into buckets: the last first, one type a bucket.

    Local; the same wherever names, shapes and types are.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        The arrays.
    bucket_bytes : int
        When a bucket is full, in bytes.

    Returns
    -------
    list of list of str
        Every name once.
    """
    buckets: list[list[str]] = []
    full = bucket_bytes
    dtype: np.dtype[Any] | None = None
    for name in reversed(list(arrays)):
        array = arrays[name]
        if not buckets or array.dtype != dtype or full + array.nbytes > bucket_bytes:
            buckets.append([])
            dtype, full = array.dtype, 0
        buckets[-1].append(name)
        full += array.nbytes
    return buckets
