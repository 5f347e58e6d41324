"""The collectives that the suite knows, one entry each.

A `Case` is a collective with its buffers on a communicator, ready for calls.
"""

from __future__ import annotations

from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from closeranks.jobs.bench.measuring.collective_facts import (
    Collective,
    MeasuredCall,
    equal,
    uneven,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py import MPI

    from closeranks.jobs.bench.measuring.collective_facts import Pattern


Array = npt.NDArray[Any]


def _one(ranks: int) -> float:
    """Bus factor of operations with one busy link."""
    del ranks
    return 1.0


def _others(ranks: int) -> float:
    """Bus factor of operations that leave a rank's own share where it is."""
    return (ranks - 1) / ranks


def _twice(ranks: int) -> float:
    """Bus factor of an all-reduce: a reduce-scatter and an all-gather."""
    return 2 * (ranks - 1) / ranks


def _plain(p: MeasuredCall, send: Array | None, receive: Array | None) -> tuple[Any, ...]:
    del p
    return send, receive


def _own_block(p: MeasuredCall) -> Array:
    return p.given(p.rank, p.starts[p.rank], p.mine)


def _all_blocks(p: MeasuredCall) -> Array:
    """Concatenate every rank's own block, as a gather does."""
    blocks = zip(range(p.ranks), p.starts, p.counts, strict=True)
    return np.concatenate([p.given(rank, at, count) for rank, at, count in blocks])


def _root_block(p: MeasuredCall) -> Array:
    return p.given(0, p.starts[p.rank], p.mine)


def _my_share(p: MeasuredCall) -> Array:
    return p.reduced(p.starts[p.rank], p.mine)


def _exchange(p: MeasuredCall, send: Array | None, receive: Array | None) -> tuple[Any, ...]:
    return [send, p.outgoing()], [receive, p.incoming()]


def _input(p: MeasuredCall) -> Array:
    return p.given(p.rank, 0, p.total)


def _total(p: MeasuredCall) -> int:
    return p.total


def _mine(p: MeasuredCall) -> int:
    return p.mine


def _none(p: MeasuredCall) -> None:
    del p


_BARRIER = Collective("barrier", "Barrier", whole, _one, _none, _none, _none, lambda *_: ())


def _only_receive(p: MeasuredCall, send: Array | None, receive: Array | None) -> tuple[Any, ...]:
    del p, send
    return (receive,)


_BROADCAST = Collective(
    name="bcast",
    method="Bcast",
    split=whole,
    factor=_one,
    send=_none,
    length=_total,
    expected=lambda p: p.given(0, 0, p.total),
    arguments=_only_receive,
    in_place=True,
)


def _reduction(name: str, **fields: Any) -> Collective:
    """Describe an operation that sends ``total`` elements and reduces them."""
    known: dict[str, Any] = {
        "method": name.capitalize(),
        "split": whole,
        "factor": _one,
        "send": _input,
        "length": _total,
        "arguments": _plain,
        "reduces": True,
    }
    return Collective(name=name, **{**known, **fields})


def _movement(name: str, **fields: Any) -> Collective:
    """Describe an operation that only moves blocks."""
    known: dict[str, Any] = {
        "method": name.capitalize(),
        "split": uneven if name.endswith("v") else equal,
        "factor": _others,
        "arguments": _plain,
    }
    return Collective(name=name, **{**known, **fields})


def _to_root(name: str, arguments: Any = _plain) -> Collective:
    """Describe a gather."""
    return _movement(
        name,
        send=_own_block,
        length=lambda p: p.total if p.at_root else None,
        expected=lambda p: _all_blocks(p) if p.at_root else None,
        arguments=arguments,
    )


def _from_root(name: str, arguments: Any = _plain) -> Collective:
    """Describe a scatter."""
    return _movement(
        name,
        send=lambda p: _input(p) if p.at_root else None,
        length=_mine,
        expected=_root_block,
        arguments=arguments,
    )


def _with_counts(p: MeasuredCall, array: Array | None) -> Any:
    """Add the counts to a buffer that holds every rank's block."""
    return None if array is None else [array, list(p.counts)]


COLLECTIVES: dict[str, Collective] = {
    one.name: one
    for one in (
        _BARRIER,
        _BROADCAST,
        _reduction(
            "reduce",
            length=lambda p: p.total if p.at_root else None,
            expected=lambda p: p.reduced(0, p.total) if p.at_root else None,
        ),
        _reduction("allreduce", factor=_twice, expected=lambda p: p.reduced(0, p.total)),
        _reduction(
            "reduce_scatter_block",
            split=equal,
            factor=_others,
            length=_mine,
            expected=_my_share,
        ),
        _reduction(
            "reduce_scatter",
            split=uneven,
            factor=_others,
            length=_mine,
            expected=_my_share,
            arguments=lambda p, send, receive: (send, receive, list(p.counts)),
        ),
        _movement("allgather", send=_own_block, length=_total, expected=_all_blocks),
        _movement(
            "allgatherv",
            send=_own_block,
            length=_total,
            expected=_all_blocks,
            arguments=lambda p, send, receive: (send, _with_counts(p, receive)),
        ),
        _to_root("gather"),
        _to_root("gatherv", lambda p, send, receive: (send, _with_counts(p, receive))),
        _from_root("scatter"),
        _from_root("scatterv", lambda p, send, receive: (_with_counts(p, send), receive)),
        _movement("alltoall", send=_input, length=_total, expected=MeasuredCall.exchanged),
        _movement(
            "alltoallv",
            send=_input,
            length=_total,
            expected=MeasuredCall.exchanged,
            arguments=_exchange,
        ),
        _reduction("scan", expected=lambda p: p.reduced(0, p.total, p.rank + 1)),
        _reduction(
            "exscan",
            expected=lambda p: p.reduced(0, p.total, p.rank) if p.rank else None,
        ),
    )
}


def reduction(op: str) -> Any:
    """Return the reduction operation of a name.

    Parameters
    ----------
    op : str
        Name in `pattern.OPS`.

    Returns
    -------
    MPI.Op or closeranks.MEAN
        What the communicator takes as ``op=``.
    """
    from mpi4py import MPI

    import closeranks

    return closeranks.MEAN if op == "mean" else getattr(MPI, op.upper())


class Case:
    """One collective at one size on this rank.

    Parameters
    ----------
    collective : Collective
        The operation.
    nbytes : int
        Size asked for; see `Collective.problem`.
    pattern : Pattern
        Inputs and results.
    comm : MPI.Intracomm
        The communicator that is measured; `Case` calls it only when asked.
    empty : callable, optional
        Length, type -> an array for a buffer; collective.
    persistent : bool
        Whether calls start a persistent operation and wait for it.

    Attributes
    ----------
    problem : MeasuredCall
        The operation at this size.
    size_bytes : int
        Size of the operation with whole blocks.
    """

    def __init__(
        self,
        collective: Collective,
        nbytes: int,
        pattern: Pattern,
        comm: MPI.Intracomm,
        empty: Callable[[int, npt.DTypeLike], Array] | None = None,
        *,
        persistent: bool = False,
    ) -> None:
        self._collective = collective
        self._persistent, self._made = persistent, {}
        self._comm = comm
        p = collective.problem(comm.Get_rank(), nbytes, pattern, comm.Get_size())
        self.problem: MeasuredCall = p
        length = collective.length(p)
        self._send = collective.send(p)
        self._receive = None if length is None else np.zeros(length, pattern.dtype)
        if empty is not None:
            self._send, self._receive = _copied(self._send, empty), _copied(self._receive, empty)
        self.size_bytes = p.total * pattern.dtype.itemsize
        self.refill()

    _made: dict[tuple[object, ...], MPI.Prequest]

    def free(self) -> None:
        """Free the persistent operations; local."""
        for request in self._made.values():
            request.Free()
        self._made.clear()

    def refill(self) -> None:
        """Spoil the receive buffer, so that nothing right stands there."""
        if self._receive is None:
            return
        if self._collective.in_place and self.problem.at_root:
            self._receive[:] = self.problem.given(0, 0, self.problem.total)
        else:
            self._receive.view(np.uint8).fill(0xA5)

    def wrong(self) -> int:
        """Count this rank's wrong elements; local."""
        expected = self._collective.expected(self.problem)
        if expected is None or self._receive is None:
            return 0
        rounded = self.problem.pattern.op == "mean" and self._collective.reduces
        return differing(self._receive, expected, rounded=rounded)

    def ours(self, algorithm: str) -> Callable[[], object]:
        """Return what does the operation through closeranks with an algorithm.

        Parameters
        ----------
        algorithm : str
            Passed on as ``algorithm=``, except "auto", which is not.

        Returns
        -------
        callable
            Takes nothing; collective.
        """
        keywords: dict[str, Any] = {} if algorithm == "auto" else {"algorithm": algorithm}
        if self._persistent:
            return self._again(self._comm, self._send, self._receive, **keywords)
        return self._call(self._comm, self._send, self._receive, **keywords)

    def copy(self) -> Callable[[], object]:
        """Return a copy of as many bytes as this rank receives; local.

        Returns
        -------
        callable
            Takes nothing; overwrites the receive buffer.
        """
        receive = np.zeros(0) if self._receive is None else self._receive
        return partial(np.copyto, receive, receive.copy())

    def begins(self, algorithm: str) -> Callable[[], MPI.Request]:
        """Return the call that starts the operation and does not wait.

        Parameters
        ----------
        algorithm : str
            As for `ours`.

        Returns
        -------
        callable
            Takes nothing, returns a request; collective.
        """
        keywords: dict[str, Any] = {} if algorithm == "auto" else {"algorithm": algorithm}
        return self._call(self._comm, self._send, self._receive, prefix="I", **keywords)

    def native(self, plain: MPI.Intracomm) -> Callable[[], object]:
        """Return what does the operation through mpi4py itself on the same buffers.

        Parameters
        ----------
        plain : MPI.Intracomm
            The same communicator, with mpi4py's own methods.

        Returns
        -------
        callable
            Takes nothing; collective.
        """
        if self._persistent:
            return self._again(plain, *self._known_to_mpi())
        return self.blocking(plain)

    def blocking(self, plain: MPI.Intracomm) -> Callable[[], object]:
        """Return mpi4py's blocking call, whether ours is persistent or not.

        Parameters
        ----------
        plain : MPI.Intracomm
            As for `native`.

        Returns
        -------
        callable
            Takes nothing; collective.
        """
        return self._call(plain, *self._known_to_mpi())

    def _known_to_mpi(self) -> tuple[Array | None, Array | None]:
        """View what is not reduced as integers, where MPI may not know its type."""
        if self._collective.reduces:
            return self._send, self._receive
        return _known(self._send), _known(self._receive)

    def _again(
        self, comm: MPI.Intracomm, send: Array | None, receive: Array | None, **keywords: Any
    ) -> Callable[[], object]:
        """Make a persistent operation, once, and what starts it and waits."""
        key = type(comm), *keywords.values()
        if key not in self._made:
            self._made[key] = self._call(comm, send, receive, suffix="_init", **keywords)()
        start, wait = self._made[key].Start, self._made[key].Wait

        def again() -> None:
            start()
            wait()

        return again

    def _call(
        self,
        comm: MPI.Intracomm,
        send: Array | None,
        receive: Array | None,
        *,
        prefix: str = "",
        suffix: str = "",
        **keywords: Any,
    ) -> Callable[[], Any]:
        """Bind the arguments, so that a call costs nothing of ours.

        The method is looked up at every call, as a program does.
        """
        collective = self._collective
        if collective.reduces:
            keywords["op"] = reduction(self.problem.pattern.op)
        arguments = collective.arguments(self.problem, send, receive)
        method = prefix + (collective.method.lower() if prefix else collective.method)
        return partial(methodcaller(method + suffix, *arguments, **keywords), comm)


def _known(array: Array | None) -> Array | None:
    """View a bfloat16 or float16 array as integers."""
    if array is None or array.dtype.name not in {"bfloat16", "float16"}:
        return array
    return array.view(np.uint16)


def _copied(array: Array | None, empty: Callable[[int, npt.DTypeLike], Array]) -> Array | None:
    """Copy a buffer to an array that all ranks make, if only for a moment."""
    made = empty(0 if array is None else array.size, np.uint8 if array is None else array.dtype)
    if array is None:
        return None
    made[:] = array
    return made


def differing(found: Array, expected: Array, *, rounded: bool) -> int:
    """Count wrong elements; local.

    Parameters
    ----------
    found, expected : ndarray
        Of one type.
    rounded : bool
        Whether the last two digits may differ.

    Returns
    -------
    int
        A NaN is wrong.
    """
    return _far(found, expected) if rounded else int(np.count_nonzero(~(found == expected)))


def _far(found: Array, expected: Array) -> int:
    """Count elements more than two last digits away: division rounds."""
    name = expected.dtype.name
    digits = {"float16": 11, "bfloat16": 8, "float32": 24, "complex64": 24}.get(name, 53)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    apart = np.abs(found.astype(wide) - expected.astype(wide))
    return int(np.count_nonzero(~(apart <= 4.0 * 2.0**-digits * np.abs(expected.astype(wide)))))
