"""The benchmark ``checkpoint``: what a save costs the program, and a restore.

The unit is a copy: ``np.copyto`` of as many bytes as a rank has, all ranks at
once.  Everything is in one process; who loses a rank loses its slots.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.checkpoint.pending import Pending
from closeranks.jobs.bench.table import short

if TYPE_CHECKING:
    from closeranks.checkpoint import Checkpointer
    from closeranks.jobs.bench.session import Session

Row = dict[str, Any]

#: Bytes of a rank, if nobody says.
SIZES: Final = "64M"
#: Samples of each time, and steps between two looks at the clock.
_SAMPLES: Final = 9
_STEPS: Final = 5
#: How many copies a step of the program takes where a save follows each.
_STEP: Final = 20
_WIDTHS: Final = {"bytes": 10, "parity": 7, "copy ms": 9, "copied": 8, "committed": 10,
                  "lazy ms": 9, "slow-down": 10, "restored": 9, "rebuilt": 8, "CPU ns/B": 9,
                  "wrong": 7}  # fmt: skip


class _Clock:
    """Times calls that all ranks make at once: the slowest one's."""

    def __init__(self, session: Session) -> None:
        self._plain = session.plain

    def __call__(self, call: Callable[[], object]) -> float:
        from mpi4py import MPI

        self._plain.Barrier()
        started = time.perf_counter()
        call()
        taken = np.array([time.perf_counter() - started])
        self._plain.Allreduce(MPI.IN_PLACE, taken, op=MPI.MAX)
        return float(taken[0])


def measure_checkpoint(session: Session, nbytes: int, parity: int) -> Row:
    """Measure one size.

    Collective.

    Parameters
    ----------
    session : Session
        Where.
    nbytes : int
        Of the state of each rank.
    parity : int
        Members that may be lost.

    Returns
    -------
    dict
        Seconds are medians; the same on every rank.
    """
    from closeranks.checkpoint import Checkpointer

    comm, clock = session.comm, _Clock(session)
    source = np.random.default_rng(comm.rank).integers(0, 256, nbytes, np.uint8)
    target = source.copy()
    name = comm.bcast(f"bench-{secrets.token_hex(4)}")
    group = max(comm.size, parity + 1) if session.nodes == 1 else None
    keeper = Checkpointer(comm, name=name, parity=parity, group=group)
    found = _saves(clock, keeper, source, target) | _back(session, clock, keeper, source, target)
    keeper.close()
    return {
        "name": "checkpoint", "algorithm": "auto", "ranks": session.ranks, "nodes": session.nodes,
        "dtype": "uint8", "op": "none", "size_bytes": nbytes, "state_bytes": nbytes,
        "iterations": _SAMPLES, "parity": parity, **found,
    }  # fmt: skip


def _saves(
    clock: _Clock, keeper: Checkpointer, source: NDArray[np.uint8], target: NDArray[np.uint8]
) -> Row:
    """Save, plain and lazily, with copies in between."""
    from closeranks.checkpoint import PerRank

    state, times = {"state": PerRank(source)}, dict[str, list[float]]()
    numbers, last = count(), list[Pending]()

    def save(*, lazy: bool = False) -> None:
        last[:] = [keeper.save(next(numbers), state, lazy=lazy)]

    for _ in range(3):
        save()
        last[0].committed.wait()
    spent = time.process_time()
    for _ in range(_SAMPLES):
        _note(times, "memcpy_s", clock(lambda: np.copyto(target, source)))
        took = clock(save)
        _note(times, "copied_s", took)
        _note(times, "committed_s", took + clock(lambda: last[0].committed.wait()))
        _note(times, "lazy_s", clock(lambda: save(lazy=True)))
        last[0].committed.wait()
    spent = time.process_time() - spent
    found: Row = {key: median(values) for key, values in times.items()}
    copies = _SAMPLES * found["memcpy_s"]  # which are no part of what saves cost
    found["cpu_s_per_byte"] = max(0.0, spent - copies) / (2 * _SAMPLES * source.nbytes)
    found["slowdown"] = _slow_down(clock, save, last, _STEP * found["memcpy_s"])
    return found


def _note(times: dict[str, list[float]], key: str, seconds: float) -> None:
    """Keep a sample."""
    times.setdefault(key, []).append(seconds)


def _slow_down(
    clock: _Clock, save: Callable[..., None], last: list[Pending], step_s: float
) -> float:
    """Tell how many times longer steps take that each end in a lazy save."""

    def steps(*, saves: bool) -> None:
        for _ in range(_STEPS):
            if saves:
                save(lazy=True)
            time.sleep(step_s)
            last[0].copied.wait()

    ratios = []
    for _ in range(3):
        without = clock(lambda: steps(saves=False))
        ratios.append(clock(lambda: steps(saves=True)) / without)
        last[0].committed.wait()
    return median(ratios)


def _back(
    session: Session,
    clock: _Clock,
    keeper: Checkpointer,
    source: NDArray[np.uint8],
    target: NDArray[np.uint8],
) -> Row:
    """Restore: with all slots there, and after one rank's are gone."""
    comm, times, wrong = session.comm, dict[str, list[float]](), 0
    into = {"state": target}
    for lost in (False, True):
        for _ in range(3):
            target[:] = 0
            gone = _last(keeper.key, comm.rank) if lost else []
            comm.Barrier()  # all have looked
            for path in gone:
                path.unlink()
            took = clock(lambda: keeper.restore(into=into))
            _note(times, "rebuilt_s" if lost else "restored_s", took)
            wrong += int(np.count_nonzero(target != source))
    found: Row = {key: median(values) for key, values in times.items()}
    return {**found, "wrong": comm.allreduce(wrong)}


def _last(key: str, rank: int) -> list[Path]:
    """List the slots of the last members of groups, those that a rank looks after."""
    from closeranks.checkpoint import slots

    found = []
    for path, _ in slots.found(key):
        header = slots.look(path)
        layout, share = header.layout, header.share
        if share.member == layout.members - 1 and layout.keeper(share) == rank:
            found.append(path)
    return found


def head() -> str:
    """Write the line above the rows.

    Returns
    -------
    str
        One line.
    """
    title = "#  times are in copies, np.copyto of a rank's bytes by all ranks at once\n#"
    return title + "".join(f"{name:>{width}}" for name, width in _WIDTHS.items())[1:]


def as_line(row: Row) -> str:
    """Write a row as text.

    Parameters
    ----------
    row : dict
        Of `measure_checkpoint`.

    Returns
    -------
    str
        One line.
    """
    copy = row["memcpy_s"]
    words = [str(row["state_bytes"]), str(row["parity"]), short(1e3 * copy)]
    words += [f"{row[key] / copy:.2f}" for key in ("copied_s", "committed_s")]
    words += [short(1e3 * row["lazy_s"]), f"{row['slowdown']:.3f}"]
    words += [f"{row[key] / copy:.2f}" for key in ("restored_s", "rebuilt_s")]
    words += [f"{1e9 * row['cpu_s_per_byte']:.2f}", str(row["wrong"])]
    return "".join(f"{word:>{width}}" for word, width in zip(words, _WIDTHS.values(), strict=True))
