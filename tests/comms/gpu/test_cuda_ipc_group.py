"""Exchanges among devices whose streams take their time, each its own."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from closeranks.comms.gpu.cuda_ipc import MARKS, CudaIpcGroup

HALF = 256
ROUNDS = 6


class Stream:
    """Does what it is given in order, when it likes."""

    def __init__(self, seed: int) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._random = random.Random(seed)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], object] | None) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            if self._random.random() < 0.3:
                time.sleep(self._random.random() * 2e-3)
            work()

    def finish(self) -> None:
        over = threading.Event()
        self.put(over.set)
        assert over.wait(20)


class Desk:
    """Memory with marks: events that are made anew whenever they are set."""

    def __init__(self, streams: dict[int, Stream]) -> None:
        self.memory = np.full(2 * HALF, 0xEE, np.uint8)
        self.pointer, self.handles = self.memory.ctypes.data, ()
        self._marks: list[threading.Event | None] = [None] * MARKS
        self._streams = streams
        self.is_open = True

    def seen_by(self, streams: dict[int, Stream]) -> Desk:
        other = object.__new__(Desk)
        other.__dict__.update(self.__dict__, _streams=streams)
        return other

    def mark(self, number: int, stream: int) -> None:
        self._marks[number] = event = threading.Event()
        self._streams[stream].put(event.set)

    def follow(self, number: int, stream: int) -> None:
        event = self._marks[number]
        if event is not None:
            self._streams[stream].put(lambda: event.wait(20))

    def settle(self) -> None:
        for stream in self._streams.values():
            stream.finish()

    def close(self) -> None:
        self.is_open = False


class Device:
    """Copies and combines on one rank's streams."""

    def __init__(self, streams: dict[int, Stream]) -> None:
        self._streams = streams

    def copy(self, target: int, source: int, nbytes: int, stream: int, device: int) -> None:
        del device
        to, at = at_address(target, nbytes, "u1"), at_address(source, nbytes, "u1")
        self._streams[stream].put(lambda: np.copyto(to, at))

    def combine(
        self, op: str, dtype: str, sources: list[int], target: int, count: int, stream: int,
        device: int,
    ) -> None:  # fmt: skip
        del device
        size = count * np.dtype(dtype).itemsize
        out, *given = (at_address(place, size, dtype) for place in (target, *sources))
        assert op == "SUM"
        self._streams[stream].put(lambda: np.copyto(out, np.sum(given, axis=0)))


def at_address(place: int, nbytes: int, dtype: str) -> Any:
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(place)
    return np.frombuffer(memory, dtype)


def run(size: int, rank: int, ipc_memories: list[Desk], meet: Callable[[], Any], n: int) -> None:
    """Play a rank: all operations, on two streams in turn, in several rounds."""
    streams = ipc_memories[rank]._streams
    seen = [
        ipc_memory if one == rank else ipc_memory.seen_by(streams)
        for one, ipc_memory in enumerate(ipc_memories)
    ]
    device: Any = Device(streams)
    group = CudaIpcGroup(device, seen, rank, 0, lambda: meet() and None, lambda: False, HALF)
    kept: list[tuple[Any, Any]] = []
    for turn in range(ROUNDS):
        stream = 1 + turn % 2
        mine = np.arange(n * size) + 100 * rank + turn
        every = [np.arange(n * size) + 100 * one + turn for one in range(size)]
        x, part = mine[:n].copy(), np.zeros(n, int)
        blocks, copy = np.zeros(n * size, int), mine[:n].copy()
        group.allreduce(x.ctypes.data, x.ctypes.data, n, "int64", "SUM", stream)
        kept.append((x, np.sum(every, axis=0)[:n]))
        group.reduce_scatter(mine.ctypes.data, part.ctypes.data, n, "int64", "SUM", stream)
        kept.append((part, np.sum(every, axis=0)[rank * n :][:n]))
        group.allgather(copy.ctypes.data, blocks.ctypes.data, 8 * n, stream)
        kept.append((blocks, np.concatenate([one[:n] for one in every])))
        root = turn % size
        last = mine[:n].copy()
        group.bcast(last.ctypes.data, 8 * n, root, stream)
        kept.append((last, every[root][:n]))
        whole = np.zeros(n, int)
        group.reduce(mine.ctypes.data, whole.ctypes.data, n, "int64", "SUM", root, stream)
        kept.append((whole, np.sum(every, axis=0)[:n] * (rank == root)))
        kept += [
            (mine, every[rank]),
            (copy, every[rank][:n]),
        ]  # alive until the streams are through
    group.close()
    for found, wanted in kept:
        assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize(("size", "n"), [(2, 5), (2, 100), (3, 1), (3, 70), (4, 50)])
def test_streams_wait_for_each_other_and_hosts_only_meet(
    size: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeranks.comms.gpu.cuda_ipc.SHORT_BYTES", 64)
    all_streams = [{one: Stream(10 * rank + one) for one in (1, 2)} for rank in range(size)]
    ipc_memories = [Desk(streams) for streams in all_streams]
    meet = threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        jobs = [
            pool.submit(run, size, rank, ipc_memories, lambda: meet.wait(20), n)
            for rank in range(size)
        ]
        for job in jobs:
            job.result(timeout=60)
    assert not any(ipc_memory.is_open for ipc_memory in ipc_memories)
    for streams in all_streams:
        for stream in streams.values():
            stream.put(None)
