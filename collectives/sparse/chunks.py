"""Chunks of any shape go from owners to ranks that want them, and sums go back.

Owners and wishes are known to all ranks; sizes only to the ranks that hold a
chunk.  These are told once for each layout of a call, and kept.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike, NDArray

from closeranks.collectives.dispatch.argument_check import agree_equal
from closeranks.collectives.dispatch.call_errors import serve_in_one_piece
from closeranks.collectives.dispatch.open_plans import open_plans_of
from closeranks.collectives.pairs.pair_message import OPS, TYPES, dtype_named
from closeranks.collectives.reduction.op import name_of, title
from closeranks.collectives.sparse.agreed_numbers import (
    agreed_sum,
    greatest,
    read_by_all,
    service_of,
)
from closeranks.collectives.sparse.device_copies import read_arrays
from closeranks.collectives.sparse.row_transport import (
    AUTO,
    RowExchange,
    RowForm,
    known_algorithm,
)
from closeranks.comms import argument
from closeranks.comms.gpu.array_place import placed
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.comms.gpu.array_place import DevicePlace

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Chunks = dict[int, Array]

_ALLGATHER: Final = "allgather_chunks"
_REDUCE_SCATTER: Final = "reduce_scatter_chunks"
#: Chunks begin at multiples of this many bytes in a message.
_ALIGNED: Final = 16
#: Layouts that are kept for each communicator.
_MOST: Final = 8
#: Numbers that a rank tells the others beside what all agree on: whether it knows the layout.
_TOLD: Final = 1
#: Larger than any chunk's number.
_NONE: Final = 1 << 62


class _Kind(NamedTuple):
    """Type and shape of a chunk."""

    number: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the chunk."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def room(self) -> int:
        """Bytes that it takes in a message."""
        return -(-self.nbytes // _ALIGNED) * _ALIGNED


class _Table(NamedTuple):
    """Who owns and who wants which chunk."""

    owner: Ints
    wanted: NDArray[np.bool_]

    def given(self, rank: int) -> list[int]:
        """List the chunks that a rank owns and somebody wants."""
        found: list[int] = np.flatnonzero((self.owner == rank) & self.wanted.any(axis=1)).tolist()
        return found

    def numbers(self, sources: Ints, rows: Ints) -> list[int]:
        """List which chunks are row ``rows[i]`` of rank ``sources[i]``."""
        is_given = np.flatnonzero(self.wanted.any(axis=1))
        order = is_given[np.argsort(self.owner[is_given], kind="stable")]
        firsts = np.searchsorted(self.owner[order], sources)
        found: list[int] = order[firsts + rows].tolist()
        return found


class _Layout(NamedTuple):
    """What is known of calls of one table whose chunks have certain types and shapes."""

    exchange: RowExchange
    form: RowForm
    #: Of the chunks that this rank passes to a call.
    passed: list[_Kind]
    #: Of those that it gets.
    got: list[_Kind]


def allgather_chunks(
    comm: Communicator,
    chunks: Mapping[int, ArrayLike],
    owner: ArrayLike,
    wanted: ArrayLike,
    *,
    algorithm: str = AUTO,
) -> Chunks:
    """Give each rank the chunks that it wants.

    Collective.  A chunk crosses to a node at most once.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    chunks : mapping of int to array_like
        The chunks that this rank owns, by number; of any shapes and types.
    owner : array_like of int, shape (C,)
        Rank that owns each chunk; equal on all ranks.
    wanted : array_like of bool, shape (C, P)
        Which ranks want each chunk; equal on all ranks.
    algorithm : str
        As for `Route`.

    Returns
    -------
    dict of int to ndarray
        The chunks that this rank wants, by number, ascending; its own ones among
        them are copies.  If this rank gives a chunk that lies on a device, all
        that it gets lie there; types that the device's library lacks stay on the
        host.

    Raises
    ------
    UsageError
        If an owner is no rank, ``wanted`` has another shape, an owned chunk is
        missing, or one is given that is not owned.
    Disagreement
        On every rank, if ``owner``, ``wanted`` or ``algorithm`` differ.

    References
    ----------
    Hecate: SparseAllGather of fully sharded sparse data parallelism.
    """
    service = service_of(comm, _ALLGATHER)
    serve = partial(_gathered, service, owner=owner, wanted=wanted, algorithm=algorithm)
    return serve_in_one_piece(service, _ALLGATHER, serve, chunks)


def reduce_scatter_chunks(
    comm: Communicator,
    parts: Mapping[int, ArrayLike],
    owner: ArrayLike,
    wanted: ArrayLike,
    op: MPI.Op = MPI.SUM,
    *,
    algorithm: str = AUTO,
) -> Chunks:
    """Combine what ranks have for chunks, on the owners.

    Collective.  It is `allgather_chunks` turned around: a combined part crosses
    from a node at most once.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    parts : mapping of int to array_like
        This rank's part of each chunk that it wants, by number.
    owner : array_like of int, shape (C,)
        Rank that owns each chunk; equal on all ranks.
    wanted : array_like of bool, shape (C, P)
        Which ranks have a part of each chunk; equal on all ranks.
    op : MPI.Op
        SUM, PROD, MIN or MAX.  Operands are taken in a fixed order, as those of
        `Route.combine`.
    algorithm : str
        As for `Route`.

    Returns
    -------
    dict of int to ndarray
        The chunks that this rank owns and of which there is a part, by number,
        ascending; on a device if this rank gives a part that lies there.

    Raises
    ------
    UsageError
        If an owner is no rank, ``wanted`` has another shape, a wanted chunk is
        missing, one is given that is not wanted, or one is no array of numbers.
    Disagreement
        On every rank, if ``owner``, ``wanted``, ``op`` or ``algorithm`` differ, or
        parts of one chunk have unlike shapes or types.

    References
    ----------
    Hecate: SparseReduceScatter of fully sharded sparse data parallelism.
    """
    service = service_of(comm, _REDUCE_SCATTER)
    serve = partial(_scattered, service, owner=owner, wanted=wanted, op=op, algorithm=algorithm)
    return serve_in_one_piece(service, _REDUCE_SCATTER, serve, parts)


def _gathered(
    service: Service, operation: str, chunks: Any, *, owner: Any, wanted: Any, algorithm: Any
) -> tuple[Chunks, str]:
    service.guard.refuse(operation)

    def read() -> tuple[_Table, str]:
        return _read_table(operation, service, owner, wanted), known_algorithm(operation, algorithm)

    table, name = read_by_all(service, operation, _TOLD, read)
    layout, arrays, place = _laid_out(
        service, operation, table, chunks, f"algorithm {name!r}", partial(_gather_layout, name)
    )
    given = set(table.given(service.rank))
    message = _packed(layout.passed, arrays, given)
    found, used = layout.exchange.dispatch(operation, message, layout.form)
    return _unpacked(found, layout.got, place), used


def _scattered(
    service: Service,
    operation: str,
    parts: Any,
    *,
    owner: Any,
    wanted: Any,
    op: Any,
    algorithm: Any,
) -> tuple[Chunks, str]:
    service.guard.refuse(operation)

    def read() -> tuple[_Table, str]:
        argument.instance(operation, "op", op, MPI.Op, "give an MPI.Op")
        if name_of(op) not in OPS:
            raise UsageError(operation, f"op {title(op)}", f"one of {', '.join(OPS)}")
        return _read_table(operation, service, owner, wanted), known_algorithm(operation, algorithm)

    table, name = read_by_all(service, operation, _TOLD, read)
    asked = f"op {title(op)}, algorithm {name!r}"
    make = partial(_scatter_layout, name, str(name_of(op)))
    layout, arrays, place = _laid_out(service, operation, table, parts, asked, make)
    # Parts go in the order in which the chunks would arrive.
    by_number = {kind.number: array for kind, array in zip(layout.passed, arrays, strict=True)}
    order = table.numbers(layout.exchange.sources, layout.exchange.tokens)
    kinds = {kind.number: kind for kind in layout.passed}
    message = _packed(
        [kinds[number] for number in order], [by_number[number] for number in order], set(order)
    )
    found, used = layout.exchange.combine(operation, message, layout.form)
    return _unpacked(found, layout.got, place), used


def _read_table(where: str, service: Service, owner: Any, wanted: Any) -> _Table:
    """Read who owns and who wants chunks; UsageError says what is wrong."""
    owners = argument.array(where, "owner", owner)
    wishes, size = argument.array(where, "wanted", wanted), service.size
    if owners.ndim != 1 or (owners.dtype.kind not in "iu" and owners.size):
        raise UsageError(
            where, f"owner of {owners.dtype} and shape {owners.shape}", "give a rank a chunk"
        )
    wrong = np.flatnonzero((owners < 0) | (owners >= size))
    if len(wrong):
        chunk = int(wrong[0])
        raise UsageError(
            where,
            f"owner {owners[chunk]} of chunk {chunk} on rank {service.rank}",
            f"give ranks from 0 to {size - 1}",
        )
    if wishes.shape != (len(owners), size) or wishes.dtype != np.bool_:
        raise UsageError(
            where,
            f"wanted of {wishes.dtype} and shape {wishes.shape} on rank {service.rank}",
            f"give bools of shape ({len(owners)}, {size})",
        )
    return _Table(owners.astype(np.int64), wishes)


def _laid_out(
    service: Service,
    where: str,
    table: _Table,
    given: Any,
    asked: str,
    make: Callable[[Service, str, _Table, list[_Kind]], _Layout],
) -> tuple[_Layout, list[Array], DevicePlace | None]:
    """Compare what ranks must agree on; find or make the layout of a call.

    Gives the chunks on the host as well, and where what this rank gets shall lie.
    """
    owned = table.owner == service.rank if where == _ALLGATHER else table.wanted[:, service.rank]
    problem: UsageError | None = None
    kinds: list[_Kind] = []
    arrays: list[Array] = []
    place: DevicePlace | None = None
    try:
        kinds, arrays, place = _read_chunks(service, where, given, np.flatnonzero(owned).tolist())
    except UsageError as error:  # ranks that disagree hear of that first
        problem = error
    said = (
        f"{where}(owner {_digest(table.owner)} of {len(table.owner)} chunks,"
        f" wanted {_digest(table.wanted)}, {asked})"
    )
    kept = open_plans_of(service).layouts
    layout: _Layout | None = kept.get(said)
    is_known = layout is not None and layout.passed == kinds
    (known,) = agreed_sum(service, where, said, np.array([int(is_known)]), problem)
    if layout is None or known < service.size:
        layout = make(service, where, table, kinds)
    kept[said] = layout
    kept.move_to_end(said)
    while len(kept) > _MOST:
        kept.popitem(last=False)
    return layout, arrays, place


def _digest(array: Array) -> str:
    return blake2b(array.tobytes(), digest_size=8).hexdigest()


def _read_chunks(
    service: Service, where: str, given: Any, wanted: list[int]
) -> tuple[list[_Kind], list[Array], DevicePlace | None]:
    """Read the chunks of this rank; UsageError if they are not those of ``wanted``.

    Tells also where the first one lies that lies on a device.
    """
    rank = service.rank
    argument.instance(where, "chunks", given, Mapping, "give a dict of arrays by number")
    whose = "owned" if where == _ALLGATHER else "wanted"
    missing, extra = set(wanted) - set(given), set(given) - set(wanted)
    if missing:
        raise UsageError(
            where,
            f"no chunk {min(missing)} on rank {rank}",
            f"give every chunk {whose} by this rank",
        )
    if extra:
        shown = argument.shown(next(iter(extra)))
        raise UsageError(
            where, f"chunk {shown} on rank {rank}", f"give only chunks {whose} by this rank"
        )
    found, places = read_arrays(service, [given[number] for number in wanted], where)
    arrays = [
        argument.array(where, f"chunk {number}", one)
        for number, one in zip(wanted, found, strict=True)
    ]
    for number, array in zip(wanted, arrays, strict=True):
        is_number = array.dtype.name in TYPES and array.dtype.isnative
        if array.dtype.hasobject or (where == _REDUCE_SCATTER and not is_number):
            raise UsageError(
                where,
                f"chunk {number} of {array.dtype} on rank {rank}",
                f"one of {', '.join(TYPES)}",
            )
        if where == _ALLGATHER and not _can_be_told(array.dtype):
            raise UsageError(
                where,
                f"chunk {number} of {array.dtype} on rank {rank}",
                "give a type that has bytes and can be pickled",
            )
    kinds = [
        _Kind(number, array.dtype, array.shape)
        for number, array in zip(wanted, arrays, strict=True)
    ]
    return kinds, arrays, next((place for place in places if place is not None), None)


def _can_be_told(dtype: np.dtype[Any]) -> bool:
    """Whether a type has bytes, and other ranks can be told of it."""
    if dtype.itemsize == 0 or (dtype.isbuiltin and dtype.metadata is None):
        return dtype.itemsize > 0
    try:
        pickle.dumps(dtype)
    except Exception:
        return False
    return True


def _exchange_of(service: Service, table: _Table, algorithm: str) -> RowExchange:
    given = table.given(service.rank)
    rows, ranks = np.nonzero(table.wanted[given])
    plans = open_plans_of(service)
    return RowExchange(service, len(given), rows, ranks, algorithm=algorithm, plans=plans)


def _gather_layout(
    algorithm: str, service: Service, where: str, table: _Table, kinds: list[_Kind]
) -> _Layout:
    """Tell those that want chunks their types and shapes."""
    exchange = _exchange_of(service, table, algorithm)
    given = set(table.given(service.rank))
    mine = [kind for kind in kinds if kind.number in given]
    words = _words(service, [pickle.dumps(kind) for kind in mine])
    found, _ = exchange.dispatch(where, words.reshape(-1), RowForm(words.shape[1]))
    rows = found.reshape(-1, words.shape[1])
    got = [pickle.loads(row.tobytes()) for row in rows]
    form = RowForm(1, _rooms(mine), _rooms(got))
    return _Layout(exchange, form, kinds, got)


def _scatter_layout(
    algorithm: str, op: str, service: Service, where: str, table: _Table, kinds: list[_Kind]
) -> _Layout:
    """Tell owners the types and shapes of chunks, and compare those of one chunk."""
    exchange = _exchange_of(service, table, algorithm)
    by_number = {kind.number: kind for kind in kinds}
    order = table.numbers(exchange.sources, exchange.tokens)
    sent = [by_number[number] for number in order]
    told = [json.dumps([one.number, one.dtype.name, one.shape]).encode() for one in sent]
    words = _words(service, told).view(np.int64)
    width = words.shape[1]
    # Where all say the same, the greatest is the least: that of the complement's turned.
    both = np.concatenate([words, ~words], axis=1).reshape(-1).view(np.uint8)
    form = RowForm(16 * width, op="MAX", dtype=TYPES.index("int64"))
    found, _ = exchange.combine(where, both, form)
    rows = found.view(np.int64).reshape(-1, 2 * width)
    given = table.given(service.rank)
    unlike = np.flatnonzero((rows[:, :width] != ~rows[:, width:]).any(axis=1))
    first = given[int(unlike[0])] if len(unlike) else _NONE
    (wrong,) = (-greatest(service, np.array([-first]))).tolist()
    if wrong != _NONE:
        agree_equal(service.careful, where, _part_of(by_number.get(wrong), wrong))
    got = []
    for row in rows[:, :width]:
        number, name, shape = json.loads(row.tobytes().rstrip(b"\0"))
        got.append(_Kind(number, dtype_named(name), tuple(shape)))
    form = RowForm(1, _rooms(got), _rooms(sent), _types(got), _types(sent), op=op)
    return _Layout(exchange, form, kinds, got)


def _part_of(kind: _Kind | None, number: int) -> str:
    if kind is None:
        return f"no part of chunk {number}"
    return f"a part of chunk {number} of shape {kind.shape} and type {kind.dtype}"


def _words(service: Service, texts: list[bytes]) -> Bytes:
    """Write texts as rows of as many bytes as the longest of any rank needs."""
    longest = max(map(len, texts), default=0)
    (width,) = greatest(service, np.array([-(-longest // 8) * 8])).tolist()
    rows = b"".join(text.ljust(max(width, 8), b"\0") for text in texts)
    return np.frombuffer(rows, np.uint8).reshape(len(texts), max(width, 8))


def _types(kinds: list[_Kind]) -> Ints:
    return np.array([TYPES.index(kind.dtype.name) for kind in kinds], np.int64)


def _rooms(kinds: list[_Kind]) -> Ints:
    return np.array([kind.room for kind in kinds], np.int64)


def _packed(kinds: list[_Kind], arrays: list[Array], wanted: set[int]) -> Bytes:
    """Lay chunks one after the other."""
    chosen = [
        (kind, array) for kind, array in zip(kinds, arrays, strict=True) if kind.number in wanted
    ]
    message, at = np.empty(sum(kind.room for kind, _ in chosen), np.uint8), 0
    for kind, array in chosen:
        end = at + kind.nbytes
        message[at:end].view(kind.dtype).reshape(kind.shape)[...] = array
        message[end : at + kind.room] = 0
        at += kind.room
    return message


def _unpacked(message: Bytes, kinds: list[_Kind], place: DevicePlace | None) -> Chunks:
    """Give the chunks of a message, ascending, at a place that has their types."""
    found, at = {}, 0
    for kind in kinds:
        chunk = message[at : at + kind.nbytes].view(kind.dtype).reshape(kind.shape)
        is_there = place is not None and place.holds(kind.dtype)
        found[kind.number] = placed(chunk, place) if is_there else chunk
        at += kind.room
    return {number: found[number] for number in sorted(found)}
