"""Times of ranks, recorded in any loop and written by the first rank."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.coded import CodedAllreduce, PartialRepetition, Recorder
from closeranks.collectives.coded.stragglers.trace_file import read_trace
from closeranks.errors import UsageError


def path_of(comm: MPI.Intracomm, tmp_path: Path) -> Path:
    """Give one path to all ranks."""
    found: Path = comm.bcast(tmp_path / "run.trace")
    return found


@pytest.mark.parametrize("rounds", [0, 1, 64, 65, 150])
@pytest.mark.parametrize("plain", [True, False])
def test_a_loop(
    comm: MPI.Intracomm, world: cr.Communicator, tmp_path: Path, rounds: int, plain: bool
) -> None:
    path = path_of(comm, tmp_path)
    with Recorder(comm if plain else world, path, micro=8) as recorder:
        for _ in range(rounds):
            with recorder.compute():
                time.sleep(1e-4 * (comm.rank + 1))
            time.sleep(1e-4)
        assert recorder.rounds == rounds
    recorder.close()
    with pytest.raises(UsageError, match="closed"), recorder.compute():
        pass
    if comm.rank == 0 and rounds > 1:
        found = read_trace(path)
        assert found.compute_s.shape == (rounds, comm.size)
        assert (found.compute_s >= 1e-4 * np.arange(1, comm.size + 1)).all()
        assert (found.step_s[:-1] >= found.compute_s[:-1] + 1e-4).all()
        assert (found.step_s[-1] == 0).all()
        assert len(found.hosts) == comm.size


def test_ranks_that_end_at_other_rounds(comm: MPI.Intracomm, tmp_path: Path) -> None:
    path, rounds = path_of(comm, tmp_path), 70 + 40 * comm.rank
    with Recorder(comm, path) as recorder:
        for _ in range(rounds):
            with recorder.compute():
                pass
    if comm.rank == 0:
        assert len(read_trace(path).compute_s) == 70


def test_a_call_is_short(comm: MPI.Intracomm, tmp_path: Path) -> None:
    with Recorder(comm, path_of(comm, tmp_path)) as recorder:
        spent = []
        for _ in range(50):
            began = time.perf_counter()
            for _ in range(50):
                with recorder.compute():
                    pass
            spent.append((time.perf_counter() - began) / 50)
    assert np.quantile(spent, 0.1) < 5e-6  # 2 on a quiet machine


def test_a_path_that_cannot_be_written(comm: MPI.Intracomm, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing"):
        Recorder(comm, path_of(comm, tmp_path) / "missing" / "run.trace")
    assert comm.allreduce(1) == comm.size


def test_a_rank_that_raises(comm: MPI.Intracomm, tmp_path: Path) -> None:
    breaks, path = comm.size // 2, path_of(comm, tmp_path)
    for turn in range(2):
        try:
            with Recorder(comm, path) as recorder:
                for _ in range(70):
                    if comm.rank == breaks and turn == 0 and recorder.rounds == 66:
                        raise ValueError("mine")
                    with recorder.compute():
                        pass
        except ValueError:
            assert comm.rank == breaks
        assert comm.allreduce(1) == comm.size


def test_coded_rounds(comm: MPI.Intracomm, world: cr.Communicator, tmp_path: Path) -> None:
    path, n = path_of(comm, tmp_path), comm.size
    recorder = Recorder(world, path, micro=2)

    def part(number: int) -> Any:
        time.sleep(1e-3)
        return np.full(3, number)

    with CodedAllreduce(world, PartialRepetition(n, n - 1, 2), record=recorder) as coded:
        for _ in range(5):
            coded.step(part, 2 * n)
    recorder.close()
    if comm.rank == 0:
        found = read_trace(path).compute_s
        assert found.shape == (5, n)
        assert (found.sum(1) >= 2e-3 * n).all()
