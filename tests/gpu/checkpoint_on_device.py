"""Saves, losses and restores of CuPy arrays; the ranks share what devices there are."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cupy
import numpy as np

import closeranks as cr
from closeranks.checkpoint import Checkpointer, PerRank, Shard


def state(rank: int, size: int, step: int) -> dict[str, Any]:
    """Compute what a rank holds, on the current stream, by long work."""
    grown = cupy.zeros((1 << 11, 1 << 11), cupy.float32)
    for _ in range(100 * step):
        grown += 1
    own = cupy.full(3_000_001 + rank, rank + step, cupy.float16)
    part = cupy.arange(6000.0).reshape(6, 1000) + 6000 * rank + step
    return {
        "alike": grown, "turned": grown[3:1500, ::2].T, "own": PerRank(own),
        "part": Shard(part, (6 * size, 1000), (6 * rank, 0)), "empty": grown[:0],
    }  # fmt: skip


def check(found: dict[str, Any], rank: int, step: int) -> None:
    """Compare with what was computed."""
    plain = {key: getattr(value, "array", value) for key, value in found.items()}
    got = {key: cupy.asnumpy(value) for key, value in plain.items()}
    assert (got["alike"] == 100 * step).all()
    assert got["turned"].shape == (1024, 1497)
    assert (got["turned"] == 100 * step).all()
    assert (got["own"] == rank + step).all()
    wanted = np.arange(6000.0).reshape(6, 1000) + 6000 * rank + step
    np.testing.assert_array_equal(got["part"], wanted)
    assert got["empty"].shape == (0, 1 << 11)


def main() -> None:
    """Save twice, lose a slot, and restore: to the host, and to device arrays."""
    with cr.init() as comm:
        cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
        name = f"gpu-{comm.bcast(os.getpid(), 0)}"
        with cupy.cuda.Stream(non_blocking=True), Checkpointer(comm, name=name) as keeper:
            for step in (1, 2):
                kept = state(comm.rank, comm.size, step)
                pending = keeper.save(step, kept, lazy=step == 2)
                pending.copied.wait(60)
                kept["alike"].fill(0)
                kept["own"].value.fill(0)
            pending.committed.wait(60)
            if comm.rank == 0:
                next(Path("/dev/shm").glob(f"closeranks-*/checkpoint-{name}*.0")).unlink()
            comm.Barrier()
            found = keeper.restore()
            assert found is not None
            assert isinstance(found[1]["alike"], np.ndarray)
            check(found[1], comm.rank, 2)
            into = state(comm.rank, comm.size, 0)
            into["own"] = into["own"].value
            found = keeper.restore(into=into)
            assert found is not None
            assert found[1]["alike"] is into["alike"]
            check(found[1], comm.rank, 2)
        sys.stdout.write("right\n")


if __name__ == "__main__":
    main()
