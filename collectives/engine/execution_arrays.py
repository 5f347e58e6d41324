"""A bound plan as arrays of numbers: all that the compiled loop reads and writes.

Steps whose blocks are contiguous runs at known places are told in full; of all
others the loop knows who waits for them, and hands them back to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.engine import bound_plan as ways
from closeranks.collectives.engine import loop_layout as sweep
from closeranks.collectives.engine.leaves import Native
from closeranks.collectives.engine.loop_mpi_functions import error_place, is_wide, pointers
from closeranks.collectives.plans import table_columns as columns
from closeranks.collectives.plans.block import INPUT, OUTPUT
from closeranks.collectives.reduction.compiled_ops import combiner_of
from closeranks.collectives.reduction.op import Reducer
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import function_at
from closeranks.comms.mpi import ulfm

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.engine.bound_plan import Bound

Numbers = NDArray[np.int64]
_Places = tuple[tuple[int, int], tuple[int, int]]
_SAME_WAY: Final = {
    ways.DROPPED: sweep.NOTHING,
    ways.SEND: sweep.SEND,
    ways.RECEIVE: sweep.RECEIVE,
    ways.REDUCE: sweep.REDUCE,
    ways.COPY: sweep.COPY,
    ways.LONG_SEND: sweep.SEND,
    ways.LONG_RECEIVE: sweep.RECEIVE,
    ways.GENERAL: sweep.PYTHON,
}
_WAYS: Final = np.array([_SAME_WAY[way] for way in range(len(_SAME_WAY))], np.int64)


class _Side(NamedTuple):
    """One block of every step: where it is and how its items lie."""

    address: Numbers
    nbytes: Numbers
    runs: Numbers
    run_bytes: Numbers
    gap: Numbers
    unit: Numbers

    @property
    def end(self) -> Numbers:
        """Address after the last byte."""
        end: Numbers = self.address + (self.runs - 1) * self.gap + self.run_bytes
        return end


class ExecutionLayout:
    """The arrays of one bound plan.

    Local.  One execution at a time uses them, as it does the plan.

    Parameters
    ----------
    bound : Bound
        The plan and its memory.

    Attributes
    ----------
    state, rows, following, steps, flights, requests, counts : ndarray
        What `closeranks.collectives.engine.compiled_loop.advance` reads and
        writes.
    first_state, first_steps : ndarray
        What ``state`` and ``steps`` are when an execution begins.
    attached : int
        What `Bound.attached` was when they last pointed at its memory.
    place : int
        Where their addresses stand: what the loop is given.
    """

    def __init__(self, bound: Bound) -> None:
        self.attached = -1
        self._places = bound.places
        self.rows = np.zeros((len(bound.table), sweep.WIDTH), np.int64)
        self.following = np.array(bound.table.successors)
        self._write_rows(bound)
        room = self._room()
        self.steps = np.zeros((sweep.ROWS, len(bound.table)), np.int64)
        self.flights = np.zeros((2, room + len(bound.table)), np.int64)
        self.requests = np.zeros(sweep.FIRST + room, np.int64 if is_wide() else np.int32)
        self.counts = np.zeros(1 + room, np.int32)
        self.statuses = np.zeros((room, error_place()[0]), np.int32)
        self.state = np.zeros(sweep.STATES, np.int64)
        self._write_names(bound)
        self.first_state, self.first_steps = self.state.copy(), np.zeros_like(self.steps)
        self._write_first(bound)
        self._frame = self._write_frame()
        self.place = self._frame.ctypes.data

    def _write_frame(self) -> Numbers:
        """Tell where all arrays lie."""
        arrays = (
            self.state, self.rows, self.following, self.steps, self.flights, self.requests,
            self.counts,
        )  # fmt: skip
        frame = np.zeros(sweep.FRAME, np.int64)
        frame[: len(arrays)] = [array.ctypes.data for array in arrays]
        frame[sweep.STEPS], frame[sweep.SUCCESSORS] = len(self.rows), len(self.following)
        frame[sweep.FLIGHTS], frame[sweep.N_HANDLES] = self.flights.shape[1], len(self.requests)
        return frame

    def follow_memory(self, bound: Bound) -> None:
        """Point at the memory that is attached now, where it is another one."""
        if self.attached != bound.attached and not self._shift(bound):
            self._write_rows(bound)

    def follow(self, step: int, request: int) -> None:
        """Take a request that Python made; its step is done when it is."""
        place = int(self.state[sweep.N_REQUESTS])
        kind = self.requests.dtype
        self.requests[sweep.FIRST + place] = _fitting([request], kind)[0]
        self.flights[sweep.OWNERS, place] = step
        self.steps[sweep.PIECES, step] += 1
        self.state[sweep.N_REQUESTS] = place + 1

    def arrive(self, steps: list[int]) -> None:
        """Add steps that Python has seen arrive."""
        first = int(self.state[sweep.N_ARRIVED])
        self.flights[sweep.ARRIVED, first : first + len(steps)] = steps
        self.state[sweep.N_ARRIVED] = first + len(steps)

    def under_way(self) -> tuple[list[int], list[int]]:
        """Return the requests that are left, as handles, and whose they are."""
        n = int(self.state[sweep.N_REQUESTS])
        return (
            self.requests[sweep.FIRST : sweep.FIRST + n].tolist(),
            self.flights[sweep.OWNERS, :n].tolist(),
        )

    def error_codes(self) -> list[int]:
        """Return what MPI wrote into the statuses of what arrived last."""
        n = int(self.state[sweep.N_ARRIVED])
        codes: list[int] = self.statuses[:n, error_place()[1]].tolist()
        return codes

    def _room(self) -> int:
        """Count the requests that can be under way together."""
        messages = self.rows[:, sweep.WAY] <= sweep.PACKED_RECEIVE
        pieces = -(-self.rows[:, sweep.NBYTES] // np.maximum(self.rows[:, sweep.PIECE], 1))
        pieces = np.maximum(pieces, 1) + (self.rows[:, sweep.WAY] == sweep.PYTHON)  # an empty one
        return int(np.where(messages, pieces, 0).sum())

    def _write_names(self, bound: Bound) -> None:
        from mpi4py import MPI

        state, calls = self.state, pointers()
        self.requests[: sweep.FIRST] = _fitting(
            [handle(bound.world.traffic), handle(MPI.BYTE), handle(MPI.REQUEST_NULL)],
            self.requests.dtype,
        )
        state[sweep.ISEND : sweep.CLOCK + 1] = (
            calls.isend, calls.irecv, calls.testsome, calls.memmove, calls.relax, calls.sleep,
            calls.clock,
        )  # fmt: skip
        if ulfm.is_on():
            state[sweep.INQUIRE : sweep.RELEASE + 1] = calls.inquire, calls.release
        state[sweep.COMBINE] = combine_of(bound)
        state[sweep.REQUESTS] = self.requests[sweep.FIRST :].ctypes.data
        state[sweep.COUNTS] = self.counts.ctypes.data
        state[sweep.STATUSES] = self.statuses.ctypes.data
        state[sweep.FINISH] = -1

    def _write_first(self, bound: Bound) -> None:
        """Write what is ready and what is waited for at the start."""
        self.first_steps[sweep.LEFT] = bound.need
        self.first_steps[sweep.READY, : len(bound.first)] = bound.first
        required = len(bound.need) - len(bound.optional)
        self.first_state[sweep.N_READY] = len(bound.first)
        self.first_state[sweep.REQUIRED] = required
        self.first_state[sweep.TOLD] = required == 0

    def _shift(self, bound: Bound) -> bool:
        """Follow the caller's memory to where it is now; False if more than that changed."""
        old, new = self._places, bound.places
        if not self._shifts or not _alike(old, new, bound.dtype.alignment):
            return False
        flat = self.rows.reshape(-1)
        for users, before, now in zip(self._users, old, new, strict=True):
            flat[users] += now[0] - before[0]
        self.attached, self._places = bound.attached, new
        return True

    def _note_users(self, buffers: Numbers, sources: Numbers) -> None:
        """Note which addresses are those of the caller's memory."""
        way = self.rows[:, sweep.WAY]
        # Packed messages get new memory whenever they are cut.
        self._shifts = not np.isin(way, (sweep.PACKED_SEND, sweep.PACKED_RECEIVE)).any()
        message, moved = way <= sweep.RECEIVE, (way == sweep.REDUCE) | (way == sweep.COPY)
        self._users = [
            np.concatenate([
                np.flatnonzero(rows & (which == buffer)) * sweep.WIDTH + column
                for rows, which, column in (
                    (message, buffers, sweep.ADDRESS),
                    (moved, sources, sweep.SOURCE),
                    (moved, buffers, sweep.TARGET),
                )
            ])
            for buffer in (INPUT, OUTPUT)
        ]  # fmt: skip

    def _write_graph(self, given: Numbers) -> None:
        """Write who waits for whom, and what is the same for all memory."""
        rows = self.rows
        rows[:, sweep.PEER] = given[:, columns.PEER]
        rows[:, sweep.SLOT] = given[:, columns.SLOT]
        rows[:, sweep.OPTIONAL] = given[:, columns.FLAGS] & columns.OPTIONAL
        rows[:, sweep.NEXT : sweep.N_NEXT + 1] = given[:, columns.NEXT : columns.N_NEXT + 1]

    def _write_rows(self, bound: Bound) -> None:
        rows = self.rows
        self.attached, self._places = bound.attached, bound.places
        given = bound.table.rows
        rows[:, sweep.WAY] = _WAYS[np.array(bound.ways, np.int64)]
        self._write_graph(given)
        where, units = addresses(bound), bound.table.buffers[:, 1]
        block = _side(given[:, columns.BLOCK : columns.BLOCK + 5], where, units, bound)
        source = _side(given[:, columns.SOURCE : columns.SOURCE + 5], where, units, bound)
        _write_messages(rows, block, bound)
        _write_copies(rows, source, block)
        _write_reductions(rows, source, block, bound)
        self._note_users(given[:, columns.BLOCK], given[:, columns.SOURCE])


def _alike(old: _Places, new: _Places, align: int) -> bool:
    """Whether input and output lie to each other, and to words, as they did."""
    if any((a[0] - b[0]) % align for a, b in zip(old, new, strict=True)):
        return False
    return new[1][0] - new[0][0] == old[1][0] - old[0][0] or (_apart(old) and _apart(new))


def _apart(places: _Places) -> bool:
    (first, nbytes), (second, others) = places
    return first + nbytes <= second or second + others <= first


def _fitting(given: list[int], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return handles as the library's own type, bit for bit."""
    mask = (1 << 8 * kind.itemsize) - 1
    return np.array([one & mask for one in given], f"u{kind.itemsize}").view(kind)


def _side(blocks: Numbers, where: Numbers, units: Numbers, bound: Bound) -> _Side:
    """Place the blocks of one column; symbolic and absent ones come out as nonsense."""
    buffer, start, count, repeat, stride = blocks.T
    unit = np.where(units > 0, units, bound.dtype.itemsize)[buffer]
    nbytes = count * repeat * unit
    whole = (repeat == 1) | (stride == count)
    return _Side(
        where[buffer] + start * unit,
        nbytes,
        np.where(whole, 1, repeat),
        np.where(whole, nbytes, count * unit),
        np.where(whole, nbytes, stride * unit),
        unit,
    )


def _write_messages(rows: Numbers, block: _Side, bound: Bound) -> None:
    rows[:, sweep.ADDRESS] = block.address
    rows[:, sweep.NBYTES] = block.nbytes
    rows[:, sweep.PIECE] = block.nbytes
    message = np.isin(rows[:, sweep.WAY], (sweep.SEND, sweep.RECEIVE))
    packs = []
    for step in np.flatnonzero(message).tolist():
        if bound.ways[step] in (ways.LONG_SEND, ways.LONG_RECEIVE):
            pieces, packed, _ = bound.payloads[step]
            rows[step, sweep.PIECE] = pieces[0][1]
            if len(pieces) > 1 and not pieces[-1][1]:  # the loop sends no empty piece
                rows[step, sweep.WAY] = sweep.PYTHON
                continue
            if packed is not None:
                packs.append(step)
                rows[step, sweep.ADDRESS] = packed.ctypes.data
                rows[step, sweep.WAY] += sweep.PACKED_SEND - sweep.SEND
    for step in packs:
        sending = rows[step, sweep.WAY] == sweep.PACKED_SEND
        run, gap = block.run_bytes[step], block.gap[step]
        rows[step, sweep.RUNS], rows[step, sweep.RUN_BYTES] = block.runs[step], run
        view, packed = block.address[step], rows[step, sweep.ADDRESS]
        rows[step, sweep.SOURCE : sweep.TARGET + 1] = (view, packed) if sending else (packed, view)
        rows[step, sweep.SOURCE_GAP :] = (gap, run) if sending else (run, gap)


def _write_copies(rows: Numbers, source: _Side, block: _Side) -> None:
    """Write copies as runs, the same on both sides, where they can be told so."""
    at = np.flatnonzero(rows[:, sweep.WAY] == sweep.COPY)
    source, block = (_Side(*(column[at] for column in side)) for side in (source, block))
    runs = np.maximum(source.runs, block.runs)
    run_bytes = np.minimum(source.run_bytes, block.run_bytes)
    whole = (source.runs == 1) & (block.runs == 1)
    odd = (source.nbytes != block.nbytes) | (runs * run_bytes != source.nbytes)
    odd |= (source.runs > 1) & (block.runs > 1) & (source.run_bytes != block.run_bytes)
    # NumPy makes a copy of what overlaps, and converts where the units differ.
    odd |= ~whole & (_overlap(source, block) | (source.unit != block.unit))
    rows[at, sweep.WAY] = np.where(odd, sweep.PYTHON, sweep.COPY)
    rows[at, sweep.SOURCE], rows[at, sweep.TARGET] = source.address, block.address
    rows[at, sweep.RUNS], rows[at, sweep.RUN_BYTES] = runs, run_bytes
    rows[at, sweep.SOURCE_GAP] = np.where(source.runs > 1, source.gap, run_bytes)
    rows[at, sweep.TARGET_GAP] = np.where(block.runs > 1, block.gap, run_bytes)


def _write_reductions(rows: Numbers, source: _Side, block: _Side, bound: Bound) -> None:
    at = np.flatnonzero(rows[:, sweep.WAY] == sweep.REDUCE)
    if not len(at):
        return
    source, block = (_Side(*(column[at] for column in side)) for side in (source, block))
    size, align = bound.dtype.itemsize, bound.dtype.alignment
    odd = (source.unit != size) | (block.unit != size) | (source.nbytes != block.nbytes)
    odd |= (source.address % align != 0) | (block.address % align != 0)
    odd |= _overlap(source, block) & (source.address != block.address)
    odd |= combine_of(bound) == 0
    rows[at, sweep.WAY] = np.where(odd, sweep.PYTHON, sweep.REDUCE)
    rows[at, sweep.SOURCE], rows[at, sweep.TARGET] = source.address, block.address
    rows[at, sweep.ITEMS] = block.nbytes // size


def _overlap(source: _Side, block: _Side) -> NDArray[np.bool_]:
    together: NDArray[np.bool_] = (source.address < block.end) & (block.address < source.end)
    return together


def combine_of(bound: Bound) -> int:
    """Return the address of what REDUCE steps call, 0 if Python must.  Local.

    Parameters
    ----------
    bound : Bound
        The plan.
    """
    name = bound.reducer.name if isinstance(bound.reducer, Reducer) else None
    if name == "PROD" and bound.dtype.kind == "c":
        return 0  # NumPy's differ in the last digit, and it may run on other ranks
    found = combiner_of(name, bound.dtype)
    return 0 if found is None else found.pair


@cache
def load_loop() -> Callable[[int], int]:
    """Load the loop for this library's handles, compiled if need be.  Local."""
    address = code_cache.address_of(*_loop())
    return function_at(address, 1, "int")


def loop_is_stored() -> bool:
    """Whether the loop lies on disk, ready to be loaded.  Local."""
    return code_cache.is_stored(*_loop())


def _loop() -> tuple[str, str]:
    return "closeranks.collectives.engine.compiled_loop", "wide" if is_wide() else "narrow"


#: Places in `handles`: the traffic communicator, MPI_BYTE, the element, the op.
TRAFFIC: Final = 0


BYTE: Final = 1


ELEMENT: Final = 2


OP: Final = 3


#: First of the communicators of leaves, one for every entry of ``Table.actions``.
LANES: Final = 4


def handle(thing: MPI.Comm | MPI.Datatype | MPI.Op | MPI.Request) -> int:
    """Return an MPI handle as the int64 with the same bits.  Local.

    Parameters
    ----------
    thing : MPI.Comm, MPI.Datatype, MPI.Op or MPI.Request
        What to name to the C library.
    """
    number: int = thing.handle & (2**64 - 1)
    return number - 2**64 if number >= 2**63 else number


def handles(bound: Bound) -> NDArray[np.int64]:
    """Return the handles that a bound plan needs.

    Local.

    Parameters
    ----------
    bound : Bound
        The plan.

    Returns
    -------
    ndarray, shape (LANES + len(actions),), dtype int64
        See `TRAFFIC`, `BYTE`, `ELEMENT`, `OP`, `LANES`; null handles where there
        is nothing: no element MPI has a name for, no native leaf.
    """
    from mpi4py import MPI

    reducer = bound.reducer if isinstance(bound.reducer, Reducer) else None
    element = reducer.datatype if reducer else None
    op = reducer.op if reducer else None
    found = [
        handle(bound.world.traffic),
        handle(MPI.BYTE),
        handle(element or MPI.DATATYPE_NULL),
        handle(op or MPI.OP_NULL),
    ]
    runs = [run for run in bound.native.values() if isinstance(run, Native)]
    lanes = {id(run.leaf): run.lane.comm for run in runs}
    found += [handle(lanes.get(id(action), MPI.COMM_NULL)) for action in bound.table.actions]
    return np.array(found, np.int64)


def addresses(bound: Bound) -> NDArray[np.int64]:
    """Return the address of every buffer, 0 where a register sizes it.  Local.

    Parameters
    ----------
    bound : Bound
        The plan.

    Returns
    -------
    ndarray, shape (buffers,), dtype int64
        Valid until the next `Bound.attach`.
    """
    found = [0 if array is None else array.ctypes.data for array in bound.memory]
    return np.array(found, np.int64)
