"""What arrays on a GPU cost: copies, all-reduces, erasure codes and saves.

    closeranks run -n 2 -- docs/limits/devices.py [--json FILE] [BYTES ...]

The ranks take the devices in turn.  Rank 0 prints medians, of the slowest rank.  `by hand` is what
a program does without this package: copy to the host, the library's all-reduce, copy back; `pinned`
is the same through pinned memory that it keeps.  One rank also measures erasure codes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import closeranks
from closeranks.checkpoint import Checkpointer, Code, PerRank
from closeranks.collectives.communicator.communicator import Communicator
from closeranks.errors import Unavailable, UsageError

try:
    import cupy
except ImportError:
    cupy = None

SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
#: Seconds to warm up, at least three calls, and to time a side, so many calls.
WARM_S, TIMED_S, LEAST, MOST = 0.4, 0.6, 5, 51
LONG_BYTES, STATE_BYTES, SAVES = 64 << 20, 1 << 30, 8
DATA, PARITY, BLOCK_BYTES = 8, 2, 32 << 20
WORLD = MPI.COMM_WORLD
Sides = dict[str, Callable[[], object]]
rows: list[dict[str, Any]] = []


def once(call: Callable[[], object]) -> float:
    """Time a call from a barrier until the device is through, on the slowest rank."""
    cupy.cuda.get_current_stream().synchronize()
    WORLD.Barrier()
    began = time.perf_counter()
    call()
    cupy.cuda.get_current_stream().synchronize()
    return float(WORLD.allreduce(time.perf_counter() - began, MPI.MAX))


def measure(what: str, size: int, sides: Sides) -> dict[str, float]:
    """Time sides in turn, and print the medians."""
    counts, times = dict[str, int](), dict[str, list[float]]()
    for name, call in sides.items():
        warm = [once(call)]
        while len(warm) < 3 or sum(warm) < WARM_S:
            warm.append(once(call))
        counts[name], times[name] = int(np.clip(TIMED_S / warm[-1], LEAST, MOST)), []
    for turn in range(max(counts.values())):
        for name, call in sides.items():
            if turn < counts[name]:
                times[name].append(once(call))
    found = {name: float(np.median(taken)) for name, taken in times.items()}
    for name, seconds in found.items():
        hand = found.get("by hand", 0.0) / seconds
        say(f"{what}{name}", size, seconds, f"{hand:.2f} times by hand" if hand else "")
    return found


def say(what: str, size: int, seconds: float, note: str = "") -> None:
    """Print a line of the table."""
    rows.append({"what": what, "ranks": WORLD.size, "bytes": size, "seconds": seconds,
                 "GBps": size / seconds / 1e9, "note": note})  # fmt: skip
    if WORLD.rank == 0:
        taken = f"{1e3 * seconds:>12.3f} ms{size / seconds / 1e9:>9.2f} GB/s"
        print(f"{what:30}{size:>12}{taken}  {note}", flush=True)  # noqa: T201


def pinned(nbytes: int) -> Any:
    """Make pinned memory."""
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)


def copies() -> float:
    """Measure copies of all ranks at once; gives the seconds of one from the device."""
    there, back = cupy.ones(LONG_BYTES, np.uint8), cupy.ones(LONG_BYTES, np.uint8)
    host, other, aside = pinned(LONG_BYTES), pinned(LONG_BYTES), cupy.cuda.Stream(non_blocking=True)

    def both() -> None:
        back.set(other, stream=aside)
        there.get(out=host, blocking=False)
        aside.synchronize()

    return measure("copy ", LONG_BYTES, {
        "from the device": lambda: there.get(out=host, blocking=False),
        "to the device": lambda: back.set(other),
        "both at once, each": both,
        "on the device": lambda: cupy.copyto(back, there),
    })["from the device"]  # fmt: skip


def offered(comm: Communicator) -> list[str]:
    """Name the algorithms by which these devices exchange data; say why not by the others."""
    given, taken, found = cupy.ones(8, np.float32), cupy.empty(8, np.float32), list[str]()
    for name in ("ipc", "nccl"):
        try:  # all ranks say so, or none
            comm.Allreduce(given, taken, algorithm=name)
            found.append(name)
        except (Unavailable, UsageError) as error:
            if comm.rank == 0:
                print(f"without {name}: {error}", flush=True)  # noqa: T201
    return found


def reductions(comm: Communicator, size: int, among: list[str]) -> None:
    """Measure all-reduces of float32."""
    given, taken = cupy.ones(size // 4, np.float32), cupy.empty(size // 4, np.float32)
    kept = pinned(size)[: size // 4 * 4].view(np.float32)

    def by_hand() -> None:
        sent = cupy.asnumpy(given)
        summed = np.empty_like(sent)
        WORLD.Allreduce(sent, summed)
        taken.set(summed)

    def by_pinned() -> None:
        given.get(out=kept)
        WORLD.Allreduce(MPI.IN_PLACE, kept)
        taken.set(kept)

    sides: Sides = {"auto": lambda: comm.Allreduce(given, taken)}
    sides |= {"by hand": by_hand, "pinned": by_pinned}
    sides |= {name: partial(comm.Allreduce, given, taken, algorithm=name) for name in among}
    for name, call in sides.items():
        taken.fill(0)
        call()
        assert bool((taken == comm.size).all()), f"{name} of {size} bytes: wrong"
    measure("all-reduce, ", size, sides)


def codes() -> None:
    """Measure erasure codes on the device and on the host."""
    code, size = Code(DATA, PARITY), DATA * BLOCK_BYTES
    host = np.random.default_rng(1).integers(0, 256, (DATA + PARITY, BLOCK_BYTES), np.uint8)
    code.encode(host[:DATA], host[DATA:])
    table = cupy.asarray(host)
    data, parity, there = table[:DATA], table[DATA:], cupy.empty_like(table[:DATA])
    present = np.arange(DATA + PARITY) >= PARITY
    table[DATA:] = 0
    code.encode(data, parity)
    table[:PARITY] = 0
    code.reconstruct(table, present, table)
    assert bool((cupy.asnumpy(table) == host).all()), "codes: wrong"
    measure(f"code {DATA}+{PARITY}, ", size, {
        "copy on the device": lambda: cupy.copyto(there, data),
        "encode": lambda: code.encode(data, parity),
        "reconstruct": lambda: code.reconstruct(table, present, table),
        "encode on the host": lambda: code.encode(host[:DATA], host[DATA:]),
        "rebuild on the host": lambda: code.reconstruct(host, present, host),
    })  # fmt: skip


def saves(comm: Communicator, copy_s: float) -> None:
    """Measure saves of a state that the ranks have together."""
    each = STATE_BYTES // comm.size
    state = {"own": PerRank(cupy.ones(each // 4, np.float32))}
    place = comm.bcast(tempfile.mkdtemp(dir="/dev/shm") if comm.rank == 0 else None)
    times: dict[str, list[float]] = {"returned, lazy": [], "copied": [], "committed": []}
    with Checkpointer(comm, name=f"devices-{comm.bcast(os.getpid())}", directory=place) as keeper:
        for step in range(SAVES):
            WORLD.Barrier()
            began = time.perf_counter()
            pending, ends = keeper.save(step, state, lazy=True), [time.perf_counter()]
            for mark in (pending.copied, pending.committed):
                mark.wait(60)
                ends.append(time.perf_counter())
            for found, end in zip(times.values(), ends, strict=True):
                found.append(float(WORLD.allreduce(end - began, MPI.MAX)))
    for name, found in times.items():
        late = float(np.median(found[3:]))  # the first ones make their files
        over = late * LONG_BYTES / (each * copy_s)
        say(f"save, {name}", each, late, f"{over:.2f} copies; the first {1e3 * found[0]:.0f} ms")
    WORLD.Barrier()
    if comm.rank == 0:
        shutil.rmtree(place)


def main() -> None:
    """Measure all."""
    words = sys.argv[1:]
    target = words.pop(words.index("--json") + 1) if "--json" in words else None
    with closeranks.init() as comm:
        if cupy is None or not cupy.cuda.is_available():
            if comm.rank == 0:
                print("not measured: this needs CuPy, and a GPU that it sees")  # noqa: T201
            return
        cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
        with cupy.cuda.Stream(non_blocking=True):
            copy_s, among = copies(), offered(comm)
            for size in [int(word) for word in words if word != "--json"] or SIZES:
                reductions(comm, size, among)
            if comm.size == 1:
                codes()
            saves(comm, copy_s)
        if comm.rank == 0:
            print(f"ways of device arrays: {comm.statistics().device}")  # noqa: T201
        if target and comm.rank == 0:
            Path(target).write_text(json.dumps(rows, indent=1), encoding="utf-8")


main()
