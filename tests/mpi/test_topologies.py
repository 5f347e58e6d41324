"""Topologies, intercommunicators and duplicates in the making, as mpi4py makes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.engine.tracked_communicators import TrackedCommunicators
from closeranks.comms.mpi import ulfm

World = cr.Communicator


@pytest.fixture(params=["as it is", "followed"])
def followed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether what is made is held, as where the library can revoke it."""
    if request.param == "followed":
        monkeypatch.setattr(ulfm, "is_on", lambda: True)
    return bool(request.param == "followed")


def met(comm: MPI.Comm) -> list[int]:
    """Who is in a communicator, by its own collective, upper and lower case."""
    comm.Barrier()
    found = np.empty(comm.remote_size if isinstance(comm, MPI.Intercomm) else comm.size, int)
    comm.Allgather(np.array([MPI.COMM_WORLD.rank]), found)
    assert comm.allgather(MPI.COMM_WORLD.rank) == found.tolist()
    return sorted(found.tolist())


def test_a_grid_and_what_comes_of_it(world: World, followed: bool) -> None:
    everybody = list(range(world.size))
    cart = world.Create_cart([world.size, 1], [True, False])
    assert isinstance(cart, MPI.Cartcomm)
    assert (type(cart) is MPI.Cartcomm) is not followed
    assert cart.Get_topo() == ([world.size, 1], [1, 0], [world.rank, 0])
    left, right = cart.Shift(0, 1)
    assert cart.sendrecv(world.rank, dest=right, source=left) == left
    assert cart.neighbor_allgather(world.rank)[0] == (world.rank - 1) % world.size
    line, point = cart.Sub([True, False]), cart.Sub([False, True])
    assert (met(line), met(point), line.ndim) == (everybody, [world.rank], 1)
    twin, clone, half = cart.Dup(), cart.Clone(), cart.Split(world.rank % 2, 0)
    assert all(isinstance(made, MPI.Cartcomm) for made in (line, point, twin, clone))
    assert not isinstance(half, MPI.Topocomm)
    assert met(twin) == met(clone) == everybody
    assert met(half) == everybody[world.rank % 2 :: 2]
    made: tuple[MPI.Comm, ...] = (half, clone, twin, point, line, cart)
    for one in made:
        one.Free()
        assert one == MPI.COMM_NULL


def test_who_is_no_part_of_a_grid_has_none(world: World, followed: bool) -> None:
    del followed
    cart = world.Create_cart([1])
    assert (cart == MPI.COMM_NULL) is (world.rank > 0)
    if world.rank == 0:
        assert met(cart) == [0]
        cart.Free()
    with pytest.raises(MPI.Exception):
        world.Create_cart([world.size + 1])
    world.Barrier()


def test_graphs(world: World, followed: bool) -> None:
    del followed
    size, right, left = world.size, (world.rank + 1) % world.size, (world.rank - 1) % world.size
    graph = world.Create_graph(list(range(1, size + 1)), [*range(1, size), 0])
    assert isinstance(graph, MPI.Graphcomm)
    assert graph.neighbors == [right]
    adjacent = world.Create_dist_graph_adjacent([left], [right], [3], [4])
    dist = world.Create_dist_graph([world.rank], [1], [right], weights=[5], reorder=False)
    for made, weights in ((adjacent, [[3], [4]]), (dist, [[5], [5]])):
        assert isinstance(made, MPI.Distgraphcomm)
        assert made.Get_dist_neighbors() == ([left], [right], tuple(weights))
        assert made.neighbor_allgather(world.rank) == [left]
    for other in (graph, adjacent, dist):
        other.Dup().Free()
        other.Free()


def test_two_sides(world: World, followed: bool) -> None:
    del followed
    if world.size == 1:
        pytest.skip("one side only")
    side = world.rank % 2
    half = world.Split(side, world.rank)
    inter = half.Create_intercomm(0, world, 1 - side, tag=5)
    assert isinstance(inter, MPI.Intercomm)
    twin = inter.Dup()
    both = twin.Merge(bool(side))
    assert type(twin).__name__ == "Intercomm"
    assert met(inter) == met(twin) == list(range(1 - side, world.size, 2))
    assert met(both) == list(range(world.size))
    for made in (both, twin, inter):
        made.Free()


@pytest.mark.parametrize("way", ["Idup", "Idup_with_info"])
def test_a_duplicate_in_the_making(world: World, way: str, followed: bool) -> None:
    del followed
    made, request = world.Idup() if way == "Idup" else world.Idup_with_info(MPI.INFO_NULL)
    request.Wait()
    assert isinstance(made, cr.Communicator)
    assert met(made) == list(range(world.size))
    total = np.zeros(3)
    made.Allreduce(np.ones(3), total, algorithm="ring")
    assert (total == world.size).all()
    again, request = made.Idup()
    MPI.Request.Waitall([request])
    inner = again.Create_cart([world.size])
    assert met(inner) == met(again) == met(made)
    again.Dup().Barrier()
    for one in (inner, again):
        one.Free()
    other, request = world.Dup().Idup()
    request.Wait()
    other.Barrier()  # and is closed with the family, as ``made`` is


def test_a_duplicate_is_used_when_it_is_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = MPI.Grequest.Start()

    def start(comm: MPI.Comm) -> tuple[MPI.Comm, MPI.Request]:
        made, request = MPI.Intracomm.Idup(comm)
        request.Wait()
        return made, late

    made, request = world._children.start_duplicate(start)  # type: ignore[arg-type]
    with pytest.raises(cr.UsageError, match="wait for its request"):
        made.Barrier()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        made.nothing  # type: ignore[attr-defined]  # noqa: B018
    late.Complete()
    request.Wait()
    made.Barrier()


class _Pretended:
    """What revoke meets, in the place of the library."""

    def __init__(self) -> None:
        self.revoked: list[MPI.Comm] = []

    def __call__(self, comm: MPI.Comm, born_s: float = 0.0) -> None:
        assert born_s > 0
        assert comm != MPI.COMM_NULL
        self.revoked.append(comm)


def test_what_was_freed_is_not_revoked(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = _Pretended()
    monkeypatch.setattr(ulfm, "is_on", lambda: True)
    monkeypatch.setattr(ulfm, "revoke", told)
    followed = TrackedCommunicators()

    def cart() -> MPI.Cartcomm:
        return followed.made(lambda: comm.Create_cart([comm.size]), comm.Barrier)

    for _ in range(5):
        cart().Free()
    gone, stays, later = cart(), cart(), cart()
    gone.Free()
    assert len(followed._held) == 3
    part = stays.Sub([True])
    late, request = followed.started(comm, MPI.Comm.Idup)
    followed.revoke()
    assert told.revoked == [stays, later, part] + [late] * (request == MPI.REQUEST_NULL)
    request.Wait()
    told.revoked.clear()
    followed.revoke()
    assert told.revoked == [stays, later, part, late]
    followed.close()
    followed.revoke()
    assert len(told.revoked) == 4
    for one in (stays, later, part, late):
        assert met(one) == met(comm)  # the program's still
        one.Free()


def test_nobody_has_what_others_could_not_make(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = _Pretended()
    monkeypatch.setattr(ulfm, "is_on", lambda: True)
    monkeypatch.setattr(ulfm, "revoke", told)

    def fails() -> None:
        raise MPI.Exception(MPI.ERR_OTHER)

    with pytest.raises(MPI.Exception):
        TrackedCommunicators().made(comm.Dup, fails)
    assert [made.size for made in told.revoked] == [comm.size]
    told.revoked[0].Free()


@pytest.mark.parametrize("call", [
    lambda comm: comm.Create_cart([comm.size]),
    lambda comm: comm.Create_graph([], []),
    lambda comm: comm.Create_dist_graph([], [], []),
    lambda comm: comm.Create_dist_graph_adjacent([], []),
    lambda comm: comm.Create_intercomm(0, comm, 0),
    lambda comm: comm.Idup(),
    lambda comm: comm.Idup_with_info(MPI.INFO_NULL),
])  # fmt: skip
def test_of_what_was_given_up_nothing_is_made(
    comm: MPI.Intracomm, call: Callable[[World], object]
) -> None:
    opened = cr.init(comm)
    opened.membership.family.world.revoke()
    with pytest.raises(cr.PeerError):
        call(opened)
    comm.Barrier()
    opened.abandon()
