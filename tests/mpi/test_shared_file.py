"""Node memory shared by real ranks."""

from __future__ import annotations

import errno
import gc
import os
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from closeranks.comms.shm import pages, shared_file
from closeranks.comms.shm.shared_file import share
from closeranks.errors import Unavailable, UsageError


def test_all_ranks_see_the_same_bytes(comm: MPI.Intracomm) -> None:
    made = share(comm, 8 * comm.size)
    words = made.array.view(np.int64)
    assert not words.any()
    comm.Barrier()
    words[comm.rank] = comm.rank + 1
    comm.Barrier()
    assert words.tolist() == list(range(1, comm.size + 1))
    assert not made.path.exists()
    del words
    made.close()


def test_what_one_rank_cannot_map_nobody_gets(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.rank == comm.size - 1 and comm.size > 1:

        def refuse(*_: object) -> None:
            raise Unavailable("node memory here", "mend it")

        monkeypatch.setattr(shared_file, "mapping", refuse)
    if comm.size == 1:
        return
    with pytest.raises(Unavailable, match="node memory here"):
        share(comm, 64)


def test_what_cannot_be_made_fails_everywhere(comm: MPI.Intracomm) -> None:
    with pytest.raises(Unavailable, match="node memory"):
        share(comm, 64, root=Path(__file__))  # no folder


def test_where_advice_is_not_understood_pages_are_touched(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, unknown in (("_FILL", 9998), ("_FIND", 9999)):
        monkeypatch.setattr(pages, name, unknown)
    made = share(comm, 4096 * comm.size, own=[(4096 * comm.rank, 4096)])
    made.array[4096 * comm.rank] = comm.rank + 1
    comm.Barrier()
    assert made.array[::4096].tolist() == list(range(1, comm.size + 1))
    comm.Barrier()
    made.close()


def test_each_rank_asks_for_its_own_pages(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    ask = os.posix_fallocate

    def noted(handle: int, start: int, length: int) -> None:
        assert os.fstat(handle).st_blocks * 512 <= start, "nobody has mapped it yet"
        asked.append((start, length))
        for turn in range(comm.size):
            if turn == comm.rank:
                ask(handle, start, length)
            comm.Barrier()

    monkeypatch.setattr(os, "posix_fallocate", noted)
    made = share(comm, 4096 * comm.size, own=[(4096 * comm.rank, 4096), (0, 0)])
    assert asked == [(4096 * comm.rank, 4096)]
    made.close()


def test_what_one_rank_has_no_room_for_nobody_gets(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Unavailable, match="4096 bytes wanted"):
        share(comm, 4096 * comm.size, own=[(4096 * comm.rank, 4096)])


def test_what_failed_keeps_no_pages(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("closeranks-")

    before = mapped()
    if comm.rank == 0:
        monkeypatch.setattr(os, "posix_fallocate", full)
    gc.disable()
    try:
        with pytest.raises(Unavailable) as caught:
            share(comm, 4096 * comm.size, own=[(4096 * comm.rank, 4096)])
        assert caught.value is not None
        assert mapped() == before
    finally:
        gc.enable()


def test_whatever_the_system_says_is_said_on_all_ranks(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    if comm.rank == 0:
        monkeypatch.setattr(shared_file, "_new", refuse)
    with pytest.raises(Unavailable, match=r"Too many open files.*ulimit -n"):
        share(comm, 4096)


def test_no_bytes_are_refused_on_all_ranks(comm: MPI.Intracomm) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        share(comm, 0)


def test_what_is_being_made_stays(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_file, "_UNLOCKED_S", -1.0)
    names: list[bool] = []
    reserve = pages.reserve

    def reserving(handle: FileIO, start: int, nbytes: int) -> None:
        shared_file.tidy()
        names.append(Path(str(handle.name)).exists())
        reserve(handle, start, nbytes)

    monkeypatch.setattr(pages, "reserve", reserving)
    made = share(comm, 100, own=((0, 100),))
    assert names == [True]
    made.close()
