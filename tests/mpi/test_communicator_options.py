"""The communicator on real ranks: requests, options, errors, derived ones, the end."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.engine import init_state
from closeranks.collectives.selection.pricing import NativeModel
from tests.mpi.expected import given, summed

World = cr.Communicator


@pytest.fixture
def folder(comm: MPI.Intracomm | None) -> Iterator[Path | None]:
    """A folder that rank 0 makes for all ranks; `tmp_path` is one for each."""
    if comm is None:
        yield None
        return
    made = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else ""))
    yield made
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(made)


def test_it_is_an_intracommunicator(world: World, folder: Path) -> None:
    assert isinstance(world, MPI.Intracomm)
    assert (world.rank, world.size) == (world.Get_rank(), world.Get_size())
    window = MPI.Win.Allocate(8, comm=world)
    window.Free()
    file = MPI.File.Open(world, str(folder / "file"), MPI.MODE_CREATE | MPI.MODE_WRONLY)
    file.Close()
    assert world.allgather(world.rank) == list(range(world.size))


def test_seats_and_epochs_of_a_first_world(world: World) -> None:
    assert world.hierarchy.size == world.size
    assert world.alive == tuple(range(world.size))
    assert (world.seat, world.epoch, world.joined) == (world.rank, 0, False)


@pytest.mark.parametrize("name", ["native", "ring"])
def test_requests_wait_together_with_those_of_mpi4py(world: World, name: str) -> None:
    x, y, z = given(world.rank, 5), np.empty(5, int), np.empty(5, int)
    ours = world.Iallreduce(x, y, algorithm=name)
    theirs = world.Ibarrier(algorithm="native")
    plain = MPI.Intracomm.Iallreduce(world, x, z)
    assert isinstance(ours, MPI.Request)
    MPI.Request.Waitall([ours, theirs, plain])
    assert y.tolist() == z.tolist() == summed(world.size, 5).tolist()
    assert ours == MPI.REQUEST_NULL
    assert ours.Wait()
    assert ours.test()


def test_overlapping_operations_do_not_meet(world: World) -> None:
    xs = [given(world.rank + k, 50) for k in range(8)]
    ys = [np.empty(50, int) for _ in xs]
    requests = [
        world.Iallreduce(x, y, algorithm=("ring", "recursive_doubling", "native")[k % 3])
        for k, (x, y) in enumerate(zip(xs, ys, strict=True))
    ]
    for request in reversed(requests):
        request.wait(30)
    for k, y in enumerate(ys):
        assert y.tolist() == np.sum([given(r + k, 50) for r in range(world.size)], axis=0).tolist()


def test_a_request_goes_on_after_a_timeout(world: World) -> None:
    if world.size == 1:
        return
    x, y = np.ones(3), np.empty(3)
    if world.rank == 0:
        request = world.Iallreduce(x, y, algorithm="ring")
        with pytest.raises(TimeoutError, match="goes on"):
            request.wait(0.05)
        world.send(None, 1)
        request.wait(30)
    else:
        if world.rank == 1:
            world.recv(source=0)
        world.Iallreduce(x, y, algorithm="ring").wait(30)
    assert (y == world.size).all()


def test_what_one_rank_cannot_read_is_told_to_all(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    is_given = comm.rank == 0
    with pytest.raises(OverflowError if is_given else cr.Revoked):
        cr.init(comm, timeout_s=10**400 if is_given else None)


def test_a_late_rank_is_named(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    world = cr.init(comm, timeout_s=0.3)
    world.Barrier()
    if comm.rank == 0:
        with pytest.raises(cr.PeerError) as caught:
            world.Allreduce(np.ones(4), np.empty(4), algorithm="ring")
        assert isinstance(caught.value, cr.PeerLate)
        assert comm.size - 1 in caught.value.ranks
        with pytest.raises(cr.Revoked):
            world.Allreduce(np.ones(4), np.empty(4), algorithm="ring")
    comm.Barrier()
    world.abandon()


def test_a_late_rank_ends_a_call_of_the_library(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    world = cr.init(comm, timeout_s=0.3)
    if comm.rank == 0:
        with pytest.raises(cr.PeerLate):
            world.Allreduce(np.ones(4), np.empty(4), algorithm="native")
    comm.Barrier()
    world.abandon()


def test_options_hold_inside_a_block(world: World) -> None:
    x, y = np.ones(4), np.empty(4)
    with world.using(algorithm="ring"):
        world.Allreduce(x, y)
        assert world.explain("allreduce", 32).algorithm == "ring"
        with world.using(algorithm={"allreduce": "native"}):
            world.Allreduce(x, y)
    used = world.statistics().algorithms["allreduce"]
    assert used == {"ring": 1, "native": 1}
    with (
        pytest.raises(cr.UsageError, match="no algorithm 'rong'; one of auto, native, "),
        world.using(algorithm="rong"),
    ):
        pass
    with pytest.raises(cr.Unavailable), world.using(wire="float16"):
        pass


def test_options_must_be_the_same_everywhere(world: World) -> None:
    if world.size == 1:
        return
    name = "ring" if world.rank else "native"
    with pytest.raises(cr.Disagreement) as caught, world.using(algorithm=name):
        pass
    assert "'native'" in str(caught.value.values[0])
    assert "'ring'" in str(caught.value.values[1])


def test_a_table_says_which_algorithm(comm: MPI.Intracomm, folder: Path) -> None:
    path = folder / "table.json"
    if comm.rank == 0:
        path.write_text(
            '{"allreduce": [{"up_to_bytes": 64, "algorithm": "native"}, {"algorithm": "ring"}]}'
        )
    comm.Barrier()
    with cr.init(comm, tuning=path) as world:
        assert world.explain("allreduce", 64).algorithm == "native"
        assert world.explain("allreduce", 65).algorithm == "ring"
        x = np.ones(100)
        world.Allreduce(MPI.IN_PLACE, x)
        assert world.statistics().algorithms == {"allreduce": {"ring": 1}}
    with pytest.raises(cr.UsageError, match="no algorithm 'rong' of bcast"):
        cr.init(comm, tuning={"bcast": "rong"})


def test_a_deterministic_communicator_leaves_nothing_to_the_library(comm: MPI.Intracomm) -> None:
    with cr.init(comm, deterministic=True) as world:
        x, y = given(world.rank, 5, "f4"), np.empty(5, "f4")
        world.Allreduce(x, y)
        world.Bcast(y)
        world.Alltoallv([x, [0] * world.size], [y, [0] * world.size])
        assert all("native" not in names for names in world.statistics().algorithms.values())
        with pytest.raises(cr.UsageError, match="deterministic"):
            world.Allreduce(x, y, algorithm="native")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.Allreduce(np.ones(3), np.ones(4)), "sends 3 entries, receives 4"),
        (lambda c: c.Allreduce(np.ones(3), np.ones(3, "f4")), "sends float64, receives float32"),
        (lambda c: c.Allreduce(np.ones(3), np.ones(3), "sum"), "'sum' is no reduction"),
        (lambda c: c.Bcast(np.ones(3), root=c.size), "root . of . ranks; 0 <= root < "),
        (lambda c: c.Bcast(np.ones(3), root=-1), "root -1 of"),
        (lambda c: c.Allgather(np.ones(3), np.ones(3 * c.size + 1)), "block|divide|entries"),
        (lambda c: c.Alltoall(np.ones(2 * c.size), np.ones(c.size)), "make them equal"),
        (lambda c: c.Reduce_scatter(np.ones(3), np.ones(9), [9] * c.size), "recvcounts"),
        (lambda c: c.Allgatherv(np.ones(2), [np.ones(c.size), 1]), "counts.* says 8"),
        (lambda c: c.Alltoallv([np.ones(9), [99] * c.size], np.ones(9)), "entries of float64"),
        (lambda c: c.Barrier(algorithm="fast"), "no algorithm 'fast' of barrier; one of auto"),
        (lambda c: c.Allreduce(3.0, np.ones(1)), "a float is no buffer"),
        (lambda c: c.explain("sum", 8), "no operation 'sum'"),
        (lambda c: c.bucketed({}, bucket_bytes=0), "bucket_bytes is 0"),
    ],
)
def test_bad_calls_say_what_is_wrong(world: World, call: Any, text: str) -> None:
    with pytest.raises(cr.UsageError, match=text):
        call(world)
    for _ in range(2):
        world.Allreduce(np.ones(3), np.ones(3))  # known as the library's now
    with pytest.raises(cr.UsageError, match=text):
        call(world)
    world.Barrier()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_failure": "shrink"}, cr.Unavailable),
        ({"on_failure": "ignore"}, cr.UsageError),
        ({"spares": 1}, cr.UsageError),
        ({"on_failure": "replace"}, cr.Unavailable),
        ({"timeout_s": 0}, cr.UsageError),
        ({"topology": cr.Topology.regular(rank=9)}, cr.TopologyError),
    ],
)
def test_bad_options_are_refused(comm: MPI.Intracomm, options: Any, error: type) -> None:
    with pytest.raises(error):
        cr.init(comm, **options)


def test_unknown_settings_are_refused(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOSERANKS_CHEK", "1")
    with pytest.raises(cr.UsageError, match="CLOSERANKS_CHEK"):
        cr.init(comm)


def _unlike(comm: World, number: int) -> None:
    """Make one of several calls that differ between the ranks."""
    r = comm.rank
    (
        lambda: comm.Allreduce(np.ones(4 + r), np.ones(4 + r)),
        lambda: comm.Bcast(np.ones(4), root=r),
        lambda: comm.Bcast(np.ones(4), root=0 if r else 99),
        lambda: comm.Allreduce(np.ones(4), np.ones(4), MPI.MAX if r else MPI.MIN),
        lambda: comm.Allreduce(np.ones(4, "f8" if r else "i8"), np.ones(4, "f8" if r else "i8")),
        lambda: comm.Barrier() if r else comm.Bcast(np.ones(3)),
        lambda: comm.Gatherv(np.ones(2 + r), [np.ones(2 * comm.size), 2]),
        lambda: comm.Alltoallv(np.ones(comm.size), [np.ones(9), [1] + [r or 1] * (comm.size - 1)]),
        lambda: comm.Iallreduce(np.ones(4), np.ones(4)) if r else comm.Allreduce(*np.ones((2, 4))),
        lambda: comm.Allreduce(np.ones(4), np.ones(4), algorithm="ring" if r else "auto"),
    )[number]()


@pytest.mark.parametrize("number", range(10))
def test_checked_ranks_hear_who_passed_what(
    comm: MPI.Intracomm, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size == 1:
        return
    monkeypatch.setenv("CLOSERANKS_CHECK", "1")
    with cr.init(comm) as world:
        world.Allreduce(np.ones(2), np.ones(2))
        if number == 7 and comm.size == 2:
            return
        with pytest.raises(cr.Disagreement) as caught:
            _unlike(world, number)
        assert set(caught.value.values) == set(range(comm.size))
        world.Barrier()


def test_derived_communicators_are_ours(world: World) -> None:
    half = world.Split(world.rank % 2, -world.rank)
    members = sorted((r for r in range(world.size) if r % 2 == world.rank % 2), reverse=True)
    assert isinstance(half, cr.Communicator)
    assert [half.seat, half.rank] == [world.rank, members.index(world.rank)]
    assert half.hierarchy.size == half.size == len(members)
    for name in ("native", "ring", "auto"):
        y = np.empty(3, int)
        half.Allreduce(given(world.rank, 3), y, algorithm=name)
        assert y.tolist() == np.sum([given(r, 3) for r in members], axis=0).tolist()
    twin = half.Dup()
    twin.Barrier()
    twin.Free()
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    assert isinstance(node, cr.Communicator)
    assert node.size == world.size
    alone = world.rank % 2
    some = world.Split_type(MPI.UNDEFINED if alone else MPI.COMM_TYPE_SHARED, -world.rank)
    assert (some == MPI.COMM_NULL) == bool(alone)
    if not alone:
        assert [some.size, some.rank] == [(world.size + 1) // 2, (world.size - 1 - world.rank) // 2]
    group = world.Get_group().Incl([0])
    first = world.Create(group)
    assert (first == MPI.COMM_NULL) == (world.rank != 0)
    if world.rank == 0:
        assert world.Create_group(group).size == 1
    assert world.Split(MPI.UNDEFINED if world.rank else 0) != world


def test_statistics_count_calls_and_bytes(world: World) -> None:
    x, y = np.ones(1000), np.empty(1000)
    for _ in range(3):
        world.Allreduce(x, y, algorithm="ring")
    found = world.statistics()
    assert found.calls == {"allreduce": 3}
    if world.size > 1:
        sent = 3 * 2 * (world.size - 1) / world.size * x.nbytes
        assert sum(found.bytes_per_level.values()) == pytest.approx(sent, rel=0.01)
    assert found.seconds["allreduce"] > 0


def test_explain_prints_the_candidates(world: World) -> None:
    found = world.explain("allreduce", 1 << 20)
    assert "ring" in found.candidates
    assert found.algorithm in str(found)
    assert world.explain("allreduce", 64, "bfloat16").algorithm != "native"
    assert world.explain("allreduce", 64).rounding == ""
    assert world.explain("bcast", 64, "float16").rounding == ""
    for name, words in (("binomial", "every operation"), ("native", "library"), ("shared", "once")):
        if name != "shared" or world.size > 1:
            with world.using(algorithm={"allreduce": name}):
                assert words in str(world.explain("allreduce", 64, "float16"))


def test_the_short_way_gives_the_same(world: World) -> None:
    for _ in range(30):
        y = np.empty(4, int)
        world.Allreduce(given(world.rank, 4), y)
        assert y.tolist() == summed(world.size, 4).tolist()
    assert world.statistics().calls == {"allreduce": 30}


@pytest.mark.parametrize("order", ["forwards", "backwards", "mixed"])
def test_buckets(world: World, order: str) -> None:
    arrays = {f"w{k}": np.zeros((k + 1, 3), "f4" if k < 4 else "f8") for k in range(7)}
    names = list(arrays)
    if order == "backwards":
        names.reverse()
    elif order == "mixed":
        np.random.default_rng(world.rank).shuffle(names)
    buckets = world.bucketed(arrays, bucket_bytes=100)
    assert len(buckets) > 2
    for turn in range(2):
        for name in names:
            arrays[name][:] = (world.rank + turn) * len(name)
            buckets.ready(name)
        with pytest.raises(cr.UsageError, match=r"ready twice|no array"):
            buckets.ready("w0")
        buckets.wait(30)
        mean = (world.size - 1) / 2 + turn
        assert all(np.allclose(array, 2 * mean) for array in arrays.values())
    buckets.close()


def test_buckets_of_what_is_empty_or_masked(world: World) -> None:
    masked = np.ma.MaskedArray(np.full(2, 1.0 + world.rank), [False, True])
    arrays = {"none": np.zeros((0, 3)), "some": masked, "last": np.zeros((2, 0))}
    buckets = world.bucketed(arrays, op=MPI.SUM)
    for name in arrays:
        buckets.ready(name)
    buckets.wait(30)
    assert masked.data.tolist() == [world.size * (world.size + 1) / 2] * 2
    assert masked.mask.tolist() == [False, True]
    assert len(world.bucketed({"none": np.zeros(0)})) == 1


def test_what_no_result_can_be_put_into_is_refused_by_all(world: World) -> None:
    array = np.zeros(2)
    array.flags.writeable = False
    with pytest.raises(cr.UsageError, match="'a' is read-only"):
        world.bucketed({"a": array})
    array = np.zeros(2)
    array.flags.writeable = world.rank > 0 or world.size == 1
    if world.size > 1:
        with pytest.raises(cr.Disagreement, match="'a' is read-only"):
            world.bucketed({"a": array})


def test_shared_arrays(world: World) -> None:
    x = world.empty((world.rank + 1, 4), "f4")
    assert x.shape == (world.rank + 1, 4)
    assert x.dtype == np.dtype(np.float32)
    assert not x.any()
    x[:] = world.rank
    world.Barrier()
    assert (x == world.rank).all()
    y = world.empty(6)
    y[:] = 1
    world.Allreduce(MPI.IN_PLACE, y, algorithm="ring")
    assert (y == world.size).all()


def test_persistent_operations_end_with_their_communicator(comm: MPI.Intracomm) -> None:
    x = np.ones(4)
    with cr.init(comm) as world:
        operation = world.Allreduce_init(MPI.IN_PLACE, x, algorithm="ring")
        operation.start()
        with pytest.raises(cr.UsageError, match="started twice"):
            operation.start()
        operation.wait()
        operation.Start()
        operation.Wait()
        assert (x == comm.size**2).all()
    with pytest.raises(cr.Revoked):
        operation.start()


def test_closing_twice_is_harmless_and_later_calls_are_refused(comm: MPI.Intracomm) -> None:
    world = cr.init(comm)
    half = world.Split(world.rank % 2)
    half.Allreduce(np.ones(3), np.ones(3), algorithm="ring")
    world.close()
    world.close()
    assert world == MPI.COMM_NULL
    with pytest.raises(cr.Revoked, match="closed"):
        world.Allreduce(np.ones(3), np.ones(3))
    comm.Barrier()


@pytest.mark.parametrize("timeout_s", [None, 2.0])
def test_closing_waits_for_who_is_busy(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, timeout_s: float | None
) -> None:
    monkeypatch.setattr(init_state, "CLOSING_S", 0.2)
    world = cr.init(comm, timeout_s=timeout_s)
    if comm.rank == 0:
        time.sleep(1)
    world.close()
    assert world == MPI.COMM_NULL


def test_closing_has_a_deadline(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    if comm.size == 1:
        return
    monkeypatch.setattr(init_state, "CLOSING_S", 0.5)
    world = cr.init(comm, timeout_s=0.3)
    if comm.rank:
        with pytest.raises(cr.PeerLate, match=r"close: not ended after 0\.\d+ s, limit 0\.5 s"):
            world.close()
    comm.Barrier()
    world.abandon()


def test_closing_ends_where_a_rank_gives_up(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    world = cr.init(comm)
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.2)
        world.abandon()
    else:
        began = time.monotonic()
        with pytest.raises(cr.PeerError):
            world.close()
        assert time.monotonic() - began < 5
        world.abandon()
    comm.Barrier()


def _meet_and_fail(comm: MPI.Intracomm) -> None:
    comm.barrier()
    raise KeyError("on purpose")


def test_an_exception_leaves_without_waiting(comm: MPI.Intracomm) -> None:
    started = time.monotonic()
    if comm.rank == 0:
        with pytest.raises(KeyError), cr.init(comm) as world:
            _meet_and_fail(comm)
    else:
        world = cr.init(comm)
        comm.barrier()
        if comm.size > 1:
            comm.recv(source=0)
            with pytest.raises(cr.Revoked):
                world.Allreduce(np.ones(3), np.ones(3), algorithm="ring")
        world.abandon()
    if comm.rank == 0:
        for rank in range(1, comm.size):
            comm.send(None, rank)
    assert time.monotonic() - started < 20
    comm.Barrier()


def test_the_root_may_broadcast_what_it_may_not_write(world: cr.Communicator) -> None:
    given = np.arange(1000.0)
    given.flags.writeable = False
    for name in ("auto", "native", *cr.collectives.algorithms("bcast")):
        alone = name == "shared" and world.size == 1
        if not alone and "hierarchical" not in name:
            x = given if world.rank == 0 else np.zeros(1000)
            world.Bcast(x, algorithm=name)
            assert x[999] == 999, name


def test_a_long_call_that_nobody_waits_for_is_a_plan(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.size == 1:
        pytest.skip("one rank has nothing to wait for")
    x = given(world.rank, 1000)
    y = np.empty_like(x)
    for limit_s, is_plan in ((0.0, True), (1e9, False)):
        for module in ("choice", "chooser"):
            name = f"closeranks.collectives.selection.{module}.UNATTENDED_S"
            monkeypatch.setattr(name, limit_s)
        native_is_quick = {"latency_s": 1e-12, "s_per_byte": 0.0}
        pricing = world._service.chooser.pricing
        monkeypatch.setattr(pricing, "native", NativeModel(**native_is_quick))
        monkeypatch.setattr(pricing, "_known", {})
        request = world.Iallreduce(x, y)
        assert (request._execution is not None) == is_plan
        request.Wait()
        np.testing.assert_array_equal(y, summed(world.size, 1000))
