"""Messages that are too long for MPI are cut: shown with a limit of 1 KiB, and once for true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.checkpoint.control.control_channel import ControlChannel
from closeranks.collectives.builders.catalogue import algorithms
from closeranks.collectives.engine import bound_plan, deferred_blocks
from closeranks.comms.mpi import messages
from tests.mpi.expected import cases

LIMIT = 1 << 10
Cut = tuple[cr.Communicator, list[int]]


@pytest.fixture
def parted(
    comm: MPI.Intracomm | None, monkeypatch: pytest.MonkeyPatch, interpreter: str
) -> Iterator[Cut | None]:
    """A communicator that takes pairs of ranks for nodes; and the lengths of what is posted."""
    if comm is None:
        yield None
        return
    if interpreter == "python":
        monkeypatch.setenv("CLOSERANKS_INTERPRETER", "python")
    monkeypatch.setattr(messages, "LONGEST", LIMIT)
    posted: list[int] = []
    for module in (bound_plan, deferred_blocks, deferred_blocks):
        monkeypatch.setattr(module, "message", partial(_noted, bound_plan.message, posted))
    ranks = np.arange(comm.size)
    groups = np.stack([ranks // 2, ranks]).astype(np.int32)
    with cr.init(comm, topology=cr.Topology.from_groups(("node", "rank"), groups)) as opened:
        yield opened, posted


@pytest.fixture
def interpreter() -> str:
    """What runs plans, if a test does not say."""
    return "compiled"


def _noted(message: Callable[[Any], Any], posted: list[int], view: Any) -> Any:
    posted.append(view.nbytes)
    return message(view)


def _call(comm: cr.Communicator, case: Any, name: str, form: str) -> bool:
    """Make a call in one of three forms; False where the algorithm says that it cannot."""
    method = case.method
    try:
        if form == "blocking":
            getattr(comm, method)(*case.arguments, algorithm=name)
        elif form == "I":
            getattr(comm, f"I{method.lower()}")(*case.arguments, algorithm=name).wait(30)
        else:
            with getattr(comm, f"{method}_init")(*case.arguments, algorithm=name) as operation:
                operation.start()
                operation.wait(30)
    except cr.UsageError as error:
        if "cannot:" not in str(error) and "counts to" not in str(error):
            raise
        return False
    return True


# Blocks of 64 are whole pieces, after which those whose length nobody knows end by an empty one.
@pytest.mark.parametrize(
    ("comm", "interpreter", "form", "scale"),
    [
        (1, "compiled", "blocking", 64),
        (2, "compiled", "blocking", 61),
        (2, "compiled", "I", 64),
        (3, "compiled", "blocking", 64),
        (3, "python", "I", 61),
        (4, "compiled", "blocking", 0),
        (4, "compiled", "blocking", 61),
        (4, "compiled", "blocking", 64),
        (4, "compiled", "I", 64),
        (4, "compiled", "init", 64),
        (4, "python", "blocking", 64),
        (4, "python", "I", 61),
    ],
    indirect=["comm"],
)
def test_every_operation_in_pieces(parted: Cut | None, form: str, scale: int) -> None:
    if parted is None:
        pytest.skip("left out: a test on fewer ranks")
    comm, posted = parted
    root = comm.size - 1
    for number, one in enumerate(cases(comm.rank, comm.size, root, scale)):
        for name in ("auto", "native", *algorithms(one.method.lower())):
            case = cases(comm.rank, comm.size, root, scale)[number]
            served = _call(comm, case, name, form)
            assert served or name != "auto" or comm.size == 1, (case.method, name)
            if served and case.result is not None:
                assert case.out.tolist() == case.result.tolist(), (case.method, name)
    assert max(posted, default=0) <= LIMIT
    assert comm.size == 1 or not scale or LIMIT in posted


def test_the_library_is_not_asked_for_what_it_cannot_count(parted: Cut | None) -> None:
    if parted is None:
        pytest.skip("left out: a test on fewer ranks")
    comm, _ = parted
    for nbytes, can in ((2 * LIMIT - 1, True), (2 * LIMIT, False)):
        said = comm.explain("bcast", nbytes)
        assert (said.candidates["native"].objection is None) == can
        if not can:
            with pytest.raises(cr.UsageError, match=f"{nbytes} bytes are more than the library"):
                comm.Bcast(np.zeros(nbytes, np.uint8), algorithm="native")
    far, own = np.zeros(4 * LIMIT, np.uint8), np.full(3, comm.rank + 1, np.uint8)
    starts = [3 * LIMIT - 5 * rank for rank in range(comm.size)]
    for name in ("native", "auto"):
        far[:] = 0
        comm.Allgatherv(own, [far, ([3] * comm.size, starts), MPI.BYTE], algorithm=name)
        assert [int(far[start]) for start in starts] == [1 + rank for rank in range(comm.size)]


def test_a_users_operation_and_strided_blocks_in_pieces(parted: Cut | None) -> None:
    if parted is None:
        pytest.skip("left out: a test on fewer ranks")
    comm, _ = parted
    size, count = comm.size, 1001

    def add(one: Any, other: Any, _: Any) -> None:
        total = np.frombuffer(other, np.int64)
        total += np.frombuffer(one, np.int64)

    op = MPI.Op.Create(add, commute=False)
    given = np.arange(count) + comm.rank
    expected = size * np.arange(count) + size * (size - 1) // 2
    for name in algorithms("allreduce"):
        found = np.zeros(count, np.int64)
        try:
            comm.Allreduce(given, found, op, algorithm=name)
        except cr.UsageError:
            continue
        assert (found == expected).all(), name
    op.Free()
    table = np.zeros((count, 3), np.int64)
    table[:, 1] = given
    taken = np.zeros((size, count), np.int64)
    comm.Allgather(np.ascontiguousarray(table[:, 1]), taken)
    assert (taken == np.arange(count) + np.arange(size)[:, None]).all()


def test_states_and_checkpoints_in_pieces(parted: Cut | None) -> None:
    if parted is None:
        pytest.skip("left out: a test on fewer ranks")
    comm, _ = parted
    size, rank = comm.size, comm.rank
    state = {"one": np.arange(5 * LIMIT // 8), "none": np.zeros(0)}
    found = comm.synchronize(state)
    assert (found["one"] == state["one"]).all()
    talk = ControlChannel(comm)
    sent, room = np.full(3 * LIMIT + 1, rank, np.uint8), np.zeros(3 * LIMIT + 1, np.uint8)
    talk.move([((rank + 1) % size, sent)], [((rank - 1) % size, room)])()
    talk.close()
    assert (room == (rank - 1) % size).all()


def _available() -> int:
    words = Path("/proc/meminfo").read_text(encoding="ascii").split("MemAvailable:")[1].split()
    return int(words[0]) << 10


@pytest.mark.slow
@pytest.mark.parametrize("comm", [2], indirect=True)
def test_a_message_of_more_than_two_gigabytes(world: cr.Communicator) -> None:
    nbytes = (1 << 31) + 7
    if not world.allreduce(_available() > 4 * nbytes, MPI.LAND):
        pytest.skip(f"needs {4 * nbytes >> 30} GiB of memory, has {_available() >> 30}")
    vector = np.zeros(nbytes, np.uint8)
    if world.rank == 0:
        vector[[0, 1 << 31]], vector[-1] = 3, 7
    world.Bcast(vector, algorithm="binomial")
    assert vector[[0, 1, 1 << 31, nbytes - 1]].tolist() == [3, 0, 3, 7]
    own, ends = np.array([world.rank + 1], np.uint8), [5, nbytes - 1]
    world.Allgatherv(own, [vector, ([1, 1], ends), MPI.BYTE], algorithm="native")
    assert vector[ends].tolist() == [1, 2]
