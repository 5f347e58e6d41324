"""The benchmark ``checkpoint``: what a save costs the program, and a restore.

The unit is a copy: ``np.copyto`` of as many bytes as a rank has, all ranks at
once.  All slots of a rank are in its own process, and are lost with it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.checkpoint.control.pending import Pending
from closeranks.jobs.bench.benches.erasure import PARITY
from closeranks.jobs.bench.benches.registration import Benchmark, Item, an_item_a_size, own_table
from closeranks.jobs.bench.measuring.compute_work import works
from closeranks.jobs.bench.measuring.number_text import aligned, short
from closeranks.jobs.bench.measuring.timing import Timing, bandwidth

if TYPE_CHECKING:
    from closeranks.checkpoint import Checkpointer
    from closeranks.jobs.bench.measuring.session import Session

Row = dict[str, Any]

#: Bytes of a rank, if nobody says.
SIZES: Final = "64M"
#: Samples of each time, and steps between two looks at the clock.
_SAMPLES: Final = 9
_STEPS: Final = 3
#: How many copies a step of the program takes where a save follows each.
_STEP: Final = 20
#: The same where all cores compute, and how many such steps.
_BUSY: Final = 100
_BUSY_SAMPLES: Final = 3
#: Bytes of the program's messages beside a save.
_MESSAGE: Final = 4 << 20
_WIDTHS: Final = {"bytes": 10, "parity": 7, "copy ms": 9, "copied": 8, "committed": 10,
                  "coded ms": 9, "lazy ms": 9, "asleep": 8, "busy": 8, "plain": 8, "beside": 8,
                  "restored": 9, "rebuilt": 8, "CPU ns/B": 9, "wrong": 7}  # fmt: skip


class Clock:
    """Times calls that all ranks make at once: the slowest one's; collective.

    Parameters
    ----------
    session : Session
        Where.
    """

    def __init__(self, session: Session) -> None:
        self._plain = session.plain

    def __call__(self, call: Callable[[], object]) -> float:
        """Time a call that all begin together; gives seconds."""
        self._plain.Barrier()
        return self.goes_on(call)

    def goes_on(self, call: Callable[[], object]) -> float:
        """Time a call before which nobody waits for others; gives seconds."""
        from mpi4py import MPI

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
        Seconds are medians, ``time_us_..`` those until a save is committed; the
        same on every rank.
    """
    from closeranks.checkpoint import Checkpointer

    comm, clock = session.comm, Clock(session)
    source = np.random.default_rng(comm.rank).integers(0, 256, nbytes, np.uint8)
    target = source.copy()
    name = comm.bcast(f"bench-{secrets.token_hex(4)}")
    group = max(comm.size, parity + 1) if session.nodes == 1 else None
    keeper = Checkpointer(comm, name=name, parity=parity, group=group)
    found = _saves(clock, keeper, source, target)
    found |= _busy(session, clock, keeper, source, found)
    found |= _beside(session, clock, keeper, source) if session.nodes > 1 else {}
    found |= _back(session, clock, keeper, source, target)
    keeper.close()
    return {
        "name": "checkpoint", "algorithm": "auto", "ranks": session.ranks, "nodes": session.nodes,
        "dtype": "uint8", "op": "none", "size_bytes": nbytes, "state_bytes": nbytes,
        "iterations": _SAMPLES, "parity": parity, **found,
    }  # fmt: skip


def _saves(
    clock: Clock, keeper: Checkpointer, source: NDArray[np.uint8], target: NDArray[np.uint8]
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
        took, coded = clock(save), clock.goes_on(lambda: last[0].committed.wait())
        _note(times, "copied_s", took)
        _note(times, "encoded_s", coded)
        _note(times, "committed_s", took + coded)
        _note(times, "lazy_s", clock(lambda: save(lazy=True)))
        last[0].committed.wait()
    spent = time.process_time() - spent
    found: Row = {key: median(values) for key, values in times.items()}
    found |= base(times["committed_s"], source.nbytes)
    copies = _SAMPLES * found["memcpy_s"]  # which are no part of what saves cost
    found["cpu_s_per_byte"] = max(0.0, spent - copies) / (2 * _SAMPLES * source.nbytes)
    found["slowdown"] = _slow_down(clock, save, last, _STEP * found["memcpy_s"])
    return found


def base(samples: list[float], nbytes: int) -> Row:
    """Give the times and bandwidths that the rows of all benchmarks have.  Local.

    Parameters
    ----------
    samples : list of float
        Seconds of a `Clock`.
    nbytes : int
        Size of each save of each rank.

    Returns
    -------
    dict
        In microseconds and GB/s.
    """
    timing = Timing(np.array(samples), fmean(samples), len(samples), False)
    return timing.columns() | bandwidth(nbytes, timing.p50_us, 1.0)


def _note(times: dict[str, list[float]], key: str, seconds: float) -> None:
    """Keep a sample."""
    times.setdefault(key, []).append(seconds)


def _slow_down(
    clock: Clock, save: Callable[..., None], last: list[Pending], step_s: float
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


def _busy(
    session: Session, clock: Clock, keeper: Checkpointer, source: NDArray[np.uint8], saves: Row
) -> Row:
    """Tell how many times longer steps take that compute on all cores.

    Each ends in a save: a lazy one, and a plain one, without its own copy.
    """
    from closeranks.checkpoint import PerRank

    state, last, work = {"state": PerRank(source)}, list[Pending](), works()[0]
    calls = work.calls(session.plain, _BUSY * saves["memcpy_s"])

    def step(lazy: bool | None) -> None:
        if lazy is not None:
            last[:] = [keeper.save(2 << 30, state, lazy=lazy)]
        work.run(calls)

    def took(lazy: bool | None) -> float:
        seconds = clock(lambda: step(lazy))
        for pending in last:
            pending.committed.wait()
        return seconds

    rounds = [[took(lazy) for lazy in (None, True, False)] for _ in range(_BUSY_SAMPLES)]
    alone, lazy, plain = (median(times) for times in zip(*rounds, strict=True))
    return {"slowdown_busy": lazy / alone, "slowdown_plain": (plain - saves["copied_s"]) / alone}


def _beside(session: Session, clock: Clock, keeper: Checkpointer, source: NDArray[np.uint8]) -> Row:
    """Time an all-reduce between nodes: alone, and while parity is made."""
    from closeranks.checkpoint import PerRank

    comm, numbers = session.comm, np.ones(_MESSAGE // 4, np.float32)
    result = np.empty_like(numbers)

    def call() -> float:
        return clock(lambda: comm.Allreduce(numbers, result))

    alone = [call() for _ in range(3 + _SAMPLES)][3:]
    beside: list[float] = []
    pending = keeper.save(1 << 30, {"state": PerRank(source)})
    while len(beside) < 2 * _SAMPLES:
        took = call()
        if comm.allreduce(int(pending.committed.done())):
            break
        beside.append(took)
    pending.committed.wait()
    alone += [call() for _ in range(_SAMPLES)]
    times = median(alone), median(beside) if beside else float("nan")
    return {"allreduce_s": times[0], "beside_s": times[1], "beside_calls": len(beside)}


def _back(
    session: Session,
    clock: Clock,
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
            keeper.steps()  # parity has been looked at, in the background
            comm.Barrier()
            for path in gone:
                path.unlink()
            took = clock(lambda: keeper.restore(into=into))
            _note(times, "rebuilt_s" if lost else "restored_s", took)
            wrong += int(np.count_nonzero(target != source))
    found: Row = {key: median(values) for key, values in times.items()}
    return {**found, "wrong": comm.allreduce(wrong)}


def _last(key: str, rank: int) -> list[Path]:
    """List the slots of the last members of groups, those that a rank looks after."""
    from closeranks.checkpoint.memory import slot_file

    found = []
    for path, _ in slot_file.found(key):
        header = slot_file.look(path)
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
    title = (
        "#  times are in copies, np.copyto of a rank's bytes by all ranks at once; steps with a"
        " save over steps without:\n#  asleep for 20 copies, busy on all cores for 100, lazily and"
        " plain (but for its copy); beside: an all-reduce of 4 MiB between nodes\n#"
    )
    return title + aligned(_WIDTHS, _WIDTHS.values())[1:]


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
    words += [short(1e3 * row[key]) for key in ("encoded_s", "lazy_s")]
    words += [f"{row[key]:.3f}" for key in ("slowdown", "slowdown_busy", "slowdown_plain")]
    words += [f"{row['beside_s'] / row['allreduce_s']:.2f}" if "beside_s" in row else "-"]
    words += [f"{row[key] / copy:.2f}" for key in ("restored_s", "rebuilt_s")]
    words += [f"{1e9 * row['cpu_s_per_byte']:.2f}", str(row["wrong"])]
    return aligned(words, _WIDTHS.values())


def _rows(session: Session, item: Item) -> Iterator[Row]:
    """Measure a size with each parity."""
    for parity in session.request.own.get("parity") or (1,):
        yield measure_checkpoint(session, item.nbytes, parity)


BENCHMARKS = (
    Benchmark(
        "checkpoint",
        items=an_item_a_size(),
        measure=_rows,
        lines=own_table(head, as_line),
        options=(PARITY,),
        sizes=SIZES,
    ),
)
