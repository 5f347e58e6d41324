"""The benchmark ``snapshot``: what saves of different states cost the caller.

Only the way to ``copied``: the program goes on then.  The same bytes as one
array or in many, in one piece or not, alike on all ranks or of each rank.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.jobs.bench.benches.checkpoint import SIZES, Clock, base
from closeranks.jobs.bench.benches.registration import Benchmark, an_item_a_size, own_table
from closeranks.jobs.bench.measuring.number_text import aligned, short

if TYPE_CHECKING:
    from closeranks.jobs.bench.measuring.session import Session

Row = dict[str, Any]
State = dict[str, Any]

#: Saves whose time counts, after those that need room first.
_SAMPLES: Final = 9
_FIRST: Final = 3
#: Arrays of a state, where their number is what counts.
_ENTRIES: Final = 1000
_WIDTHS: Final = {"bytes": 11, "entries": 9, "state": 14, "copy ms": 10, "copied ms": 11,
                  "copied": 9, "us/entry": 10, "wrong": 7}  # fmt: skip


def measure_snapshot(session: Session, nbytes: int) -> Iterator[Row]:
    """Measure one size, in several states.

    Collective.

    Parameters
    ----------
    session : Session
        Where.
    nbytes : int
        Of the state of each rank.

    Yields
    ------
    dict
        Seconds are medians of the slowest rank, ``time_us_..`` those until a save
        is copied; the same on every rank.
    """
    once: float | None = None
    for kind, make in _KINDS.items():
        state = make(session.comm.rank, session.comm.size, nbytes)
        row = {"state": kind, "entries": len(state), **_measured(session, state)}
        once = row["copied_s"] if once is None else once  # of one array
        row["entry_s"] = max(0.0, row["copied_s"] - once) / max(1, len(state) - 1)
        yield {
            "name": "snapshot", "algorithm": "auto", "ranks": session.ranks,
            "nodes": session.nodes, "dtype": "mixed", "op": "none", "size_bytes": nbytes,
            "iterations": _SAMPLES, **row,
        }  # fmt: skip


def _measured(session: Session, state: State) -> Row:
    """Save a state some times, and look whether it comes back."""
    from closeranks.checkpoint import Checkpointer

    comm, clock = session.comm, Clock(session)
    arrays = list(map(_array, state.values()))
    targets = [np.empty(array.shape, array.dtype) for array in arrays]
    name = comm.bcast(f"bench-{secrets.token_hex(4)}")
    group = max(comm.size, 2) if session.nodes == 1 else None
    keeper = Checkpointer(comm, name=name, group=group)
    copies, saves = list[float](), list[float]()
    for step in range(_FIRST + _SAMPLES):
        copies.append(clock(lambda: _copy(targets, arrays)))
        saves.append(clock(partial(keeper.save, step, state)))
    found = keeper.restore()
    wrong = 1 if found is None else _wrong(found[1], state)
    keeper.close()
    state_bytes = sum(array.nbytes for array in arrays)
    return {
        "state_bytes": state_bytes,
        **base(saves[_FIRST:], state_bytes),
        "memcpy_s": median(copies[_FIRST:]),
        "copied_s": median(saves[_FIRST:]),
        "wrong": comm.allreduce(wrong),
    }


def head() -> str:
    """Write the line above the rows.

    Returns
    -------
    str
        One line.
    """
    title = "#  copied in copies: np.copyto of the same arrays by all ranks at once\n#"
    return title + aligned(_WIDTHS, _WIDTHS.values())[1:]


def as_line(row: Row) -> str:
    """Write a row as text.

    Parameters
    ----------
    row : dict
        Of `measure_snapshot`.

    Returns
    -------
    str
        One line.
    """
    words = [str(row["state_bytes"]), str(row["entries"]), row["state"]]
    words += [short(1e3 * row[key]) for key in ("memcpy_s", "copied_s")]
    words += [f"{row['copied_s'] / row['memcpy_s']:.2f}", f"{1e6 * row['entry_s']:.1f}"]
    words += [str(row["wrong"])]
    return aligned(words, _WIDTHS.values())


def _one(rank: int, size: int, nbytes: int) -> State:  # noqa: ARG001 - as all kinds
    """One array of each rank."""
    from closeranks.checkpoint import PerRank

    return {"0": PerRank(_bytes(rank, nbytes))}


def _many(rank: int, size: int, nbytes: int) -> State:  # noqa: ARG001 - as all kinds
    """Many arrays, of several types."""
    from closeranks.checkpoint import PerRank

    types = ("f4", "f8", "i2", "c16", "u1")
    each = max(16, nbytes // _ENTRIES // 16 * 16)
    return {
        str(at): PerRank(_bytes(rank + at, each).view(types[at % len(types)]))
        for at in range(_ENTRIES)
    }


def _gaps(rank: int, size: int, nbytes: int) -> State:  # noqa: ARG001 - as all kinds
    """Arrays that lie in several pieces: every other column."""
    from closeranks.checkpoint import PerRank

    rows = max(1, nbytes // 4 // 512)
    return {str(at): PerRank(_bytes(rank, rows * 1024).reshape(rows, 1024)[:, ::2])
            for at in range(4)}  # fmt: skip


def _shards(rank: int, size: int, nbytes: int) -> State:
    """Parts of what the ranks have together."""
    from closeranks.checkpoint import Shard

    rows = max(1, nbytes // 4 // 1024)
    return {
        str(at): Shard(_bytes(rank, rows * 1024).reshape(rows, 1024),
                       (rows * size, 1024), (rows * rank, 0))
        for at in range(4)
    }  # fmt: skip


def _alike(rank: int, size: int, nbytes: int) -> State:  # noqa: ARG001 - as all kinds
    """Arrays that all ranks have alike, which the ranks find out and keep once."""
    return {str(at): _bytes(at, max(1, nbytes // 4)) for at in range(4)}


def _bare(rank: int, size: int, nbytes: int) -> State:  # noqa: ARG001 - as all kinds
    """Arrays of each rank that are not marked, so that they are compared."""
    return {str(at): _bytes(rank + at, max(1, nbytes // 4)) for at in range(4)}


_KINDS: Final[dict[str, Callable[[int, int, int], State]]] = {
    "one": _one, "many": _many, "gaps": _gaps, "shards": _shards, "alike": _alike,
    "not marked": _bare,
}  # fmt: skip


def _bytes(seed: int, nbytes: int) -> NDArray[np.uint8]:
    """Give random bytes."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def _array(entry: Any) -> NDArray[Any]:
    """Give the array of an entry."""
    from closeranks.checkpoint import PerRank, Shard

    if isinstance(entry, PerRank):
        entry = entry.value
    array: NDArray[Any] = entry.array if isinstance(entry, Shard) else entry
    return array


def _copy(targets: list[NDArray[Any]], arrays: list[NDArray[Any]]) -> None:
    """Copy arrays."""
    for target, array in zip(targets, arrays, strict=True):
        np.copyto(target, array)


def _wrong(found: State, state: State) -> int:
    """Count the arrays that did not come back."""
    pairs = zip(map(_array, found.values()), map(_array, state.values()), strict=True)
    return sum(one.tobytes() != other.tobytes() for one, other in pairs)


BENCHMARKS = (
    Benchmark(
        "snapshot",
        items=an_item_a_size(),
        measure=lambda session, item: measure_snapshot(session, item.nbytes),
        lines=own_table(head, as_line),
        sizes=SIZES,
    ),
)
