"""A job that saves, and is killed at some point; another one that restores.

    remember.py NAME save STEPS [POINT RANKS]   killed in the last step
    remember.py NAME restore [POINT RANKS]
    remember.py NAME reshape
    remember.py NAME attempts shrink|replace RANKS
    remember.py NAME large
    remember.py NAME steady FOLDER STEPS    until somebody kills it, or so many steps

POINT is one of `POINTS`; RANKS such as ``1`` or ``0,1,2,3``.  Ranks are
numbered backwards when a state is restored.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.checkpoint import Checkpointer, PerRank, Shard
from closeranks.checkpoint.erasure import crc32c
from closeranks.checkpoint.memory import slot_file, slot_set
from closeranks.checkpoint.placement import slot_header
from closeranks.checkpoint.restore import coding_work as recoding_
from closeranks.checkpoint.restore import recovery_search
from closeranks.errors import CheckpointError

ROWS = 12


def state_of(rank: int, size: int, step: int) -> dict[str, Any]:
    """What a rank holds after a step."""
    low, high = ROWS * rank // size, ROWS * (rank + 1) // size
    return {
        "alike": np.arange(100_000.0) + step,
        "own": np.full(50_000 + 9999 * rank, rank + step, np.int32),
        "part": Shard(whole(step)[low:high], (ROWS, 1000), (low, 0)),
        "step": step,
    }


def whole(step: int) -> np.ndarray[Any, Any]:
    """The array that the ranks have together."""
    return np.arange(ROWS * 1000.0).reshape(ROWS, 1000) + step


def say(text: str) -> None:
    """Tell the test."""
    print(text, flush=True)  # noqa: T201 - what the test reads


def check(state: Any, rank: int, size: int, step: int) -> None:
    """Compare bit for bit."""
    wanted = state_of(rank, size, step)
    for key in ("alike", "own"):
        np.testing.assert_array_equal(state[key], wanted[key])
    np.testing.assert_array_equal(state["part"].array, wanted["part"].array)
    assert state["step"] == step


def die_at(module: Any, name: str, times: int, when: Callable[..., bool], after: bool) -> None:
    """Have this process killed at a call of a function."""
    function, left = getattr(module, name), [times]

    def deadly(*arguments: Any, **options: Any) -> Any:
        is_due = when(*arguments)
        left[0] -= is_due
        if is_due and left[0] == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        found = function(*arguments, **options)
        if is_due and left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(module, name, deadly)


def _marks(state: str) -> Callable[..., bool]:
    return lambda _self, _place, marked: marked == state


def always(*_: Any) -> bool:
    """Count every call."""
    return True


#: Point -> what is called there, which call counts, whether death comes after it.
POINTS: dict[str, tuple[Any, str, int, Callable[..., bool], bool]] = {
    "room": (slot_set.SlotSet, "clear", 1, always, True),
    "before the copy": (slot_file, "write", 1, always, False),
    "in the copy": (crc32c.Area, "put", 2, always, True),
    "copied": (slot_file, "write", 1, always, True),
    "written": (slot_set.SlotSet, "mark", 1, _marks(slot_header.WRITTEN), True),
    "in the code": (recoding_.Recoding, "_compute", 1, always, True),
    "encoded": (slot_set.SlotSet, "mark", 1, _marks(slot_header.ENCODED), True),
    "committed": (slot_set.SlotSet, "mark", 1, _marks(slot_header.COMMITTED), True),
    "verified": (recovery_search.SaveRecovery, "verify", 1, always, True),
    "rebuilding": (recoding_.Recoding, "_compute", 1, always, True),
    "rebuilt": (recovery_search.SaveRecovery, "_sum_up", 1, always, True),
}


def arm(arguments: list[str]) -> None:
    """Set this rank's death up, if it is to die."""
    if arguments and str(MPI.COMM_WORLD.rank) in arguments[1].split(","):
        die_at(*POINTS[arguments[0]])


def save(name: str, steps: int, death: list[str]) -> None:
    """Save, and die in the last step."""
    with cr.init() as comm:
        keeper = Checkpointer(comm, name=name)
        for step in range(1, steps + 1):
            comm.Barrier()
            if step == steps:
                arm(death)
            keeper.save(step, state_of(comm.rank, comm.size, step)).committed.wait(30)
        say(f"saved {steps}")
        keeper.close(keep=True)


def restore(name: str, death: list[str]) -> None:
    """Restore, with ranks numbered backwards."""
    backwards = MPI.Intracomm(MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank))
    with cr.init(backwards) as comm:
        keeper = Checkpointer(comm, name=name)
        arm(death)
        found = keeper.restore()
        assert found is not None
        step, state = found
        check(state, comm.rank, comm.size, step)
        comm.Barrier()
        if comm.rank == 0:
            say(f"restored {step}, skipped {len(keeper.skipped)}, {keeper.verify()[step]}")
        else:
            keeper.verify()
        keeper.save(step + 1, state_of(comm.rank, comm.size, step + 1)).committed.wait(30)
        assert keeper.steps() == (step + 1,)
        keeper.close(keep=True)


def wanted(comm: cr.Communicator) -> dict[str, Any]:
    """What a rank of another world asks for."""
    low, high = ROWS * comm.rank // comm.size, ROWS * (comm.rank + 1) // comm.size
    return {
        "alike": np.zeros(100_000), "own": PerRank(lambda old, _: [int(one[0]) for one in old]),
        "part": Shard(np.zeros((high - low, 1000)), (ROWS, 1000), (low, 0)), "step": 0,
    }  # fmt: skip


def reshape(name: str) -> None:
    """Restore on another number of ranks."""
    with cr.init() as comm:
        keeper = Checkpointer(comm, name=name)
        with pytest.raises(CheckpointError, match="own is of each of 4 ranks"):
            keeper.restore()
        found = keeper.restore(into=wanted(comm))
        assert found is not None
        step, state = found
        low, high = ROWS * comm.rank // comm.size, ROWS * (comm.rank + 1) // comm.size
        np.testing.assert_array_equal(state["part"].array, whole(step)[low:high])
        np.testing.assert_array_equal(state["alike"], np.arange(100_000.0) + step)
        assert state["own"] == [rank + step for rank in range(4)]
        comm.Barrier()
        if comm.rank == 0:
            say(f"reshaped {step} to {comm.size}")
        keeper.close(keep=True)


def attempts(name: str, replaces: bool, dying: str) -> None:
    """Lose ranks in a save; go on from what is left, without them or with spares."""
    with cr.init(on_failure="replace" if replaces else "shrink") as comm:
        keeper = Checkpointer(comm, name=name)
        step, before = 0, -1
        for attempt in comm.attempts():
            with attempt:
                if comm.epoch:
                    into = None if replaces else wanted(comm)
                    found = keeper.restore(into=into)
                    assert found is not None
                    before, state = step, found[1]
                    step = found[0]
                    if replaces:
                        check(state, comm.rank, comm.size, step)
                    else:
                        assert state["own"] == [rank + step for rank in range(4)]
                while step < 6:
                    step += 1
                    if step == 4 and not comm.epoch:
                        arm(["in the code", dying])
                    pending = keeper.save(step, state_of(comm.rank, comm.size, step))
                    pending.committed.wait(30)
        assert before in (0, 4), before
        say(f"done {step} with {comm.size} of epoch {comm.epoch}")
        keeper.close()


def steady(name: str, folder: Path, steps: int) -> None:
    """Restore what any number of ranks has left, and save; tell who one is, and what is kept."""
    backwards = MPI.Intracomm(MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank))
    with cr.init(backwards if steps < 99 else None) as comm:
        (folder / f"rank-{comm.rank}").write_text(f"{os.getpid()}\n")
        keeper, step = Checkpointer(comm, name=name), 0
        found = keeper.restore(into={**wanted(comm), "own": PerRank(lambda old, _: old)})
        if found is not None:
            step, state = found
            old = len(state["own"])
            for rank, own in enumerate(state["own"]):
                np.testing.assert_array_equal(own, state_of(rank, old, step)["own"])
            mine = state_of(comm.rank, comm.size, step)
            np.testing.assert_array_equal(state["alike"], mine["alike"])
            np.testing.assert_array_equal(state["part"].array, mine["part"].array)
            assert state["step"] == step
            say(f"restored {step}, skipped {len(keeper.skipped)}")
        for at in range(step + 1, step + 1 + steps):
            lazy = at % 2 == 0
            keeper.save(at, state_of(comm.rank, comm.size, at), lazy=lazy).committed.wait(30)
            if comm.rank == 0:
                with (folder / "committed").open("a") as file:
                    file.write(f"{at}\n")
        keeper.close(keep=True)


def large(name: str) -> None:
    """Save 2.2 GiB, most of it on one rank; lose a slot, and get all back."""
    with cr.init() as comm:
        count = 283 << 20 if comm.rank == 0 else 5 << 20  # of 8 bytes
        own = np.arange(count, dtype=np.int64)
        own *= comm.rank + 3
        with Checkpointer(comm, name=name) as keeper:
            keeper.save(1, {"own": PerRank(own)}).committed.wait(60)
            comm.Barrier()
            if comm.rank == 0:
                next(path for path, _ in slot_file.found(keeper.key) if "-1." in path.name).unlink()
            own[:] = 0
            comm.Barrier()
            found = keeper.restore(into={"own": own})
        assert found is not None
        assert found[1]["own"] is own
        step = 1 << 20
        for start in range(0, count, step):
            wanted = np.arange(start, min(start + step, count)) * (comm.rank + 3)
            assert np.array_equal(own[start : start + step], wanted), start
        say(f"{own.nbytes} bytes are back")


if __name__ == "__main__":
    given = sys.argv[2:]
    if given[0] == "save":
        save(sys.argv[1], int(given[1]), given[2:])
    elif given[0] == "restore":
        restore(sys.argv[1], given[1:])
    elif given[0] == "reshape":
        reshape(sys.argv[1])
    elif given[0] == "steady":
        steady(sys.argv[1], Path(given[1]), int(given[2]))
    elif given[0] == "large":
        large(sys.argv[1])
    else:
        attempts(sys.argv[1], given[1] == "replace", given[2])
