"""Arguments of no use: `UsageError` with value and way out, on all ranks, at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.errors import UsageError

World = cr.Communicator
#: What hardly any argument may be.
WRONG = (-1, 1.5, float("nan"), "x", [1], object(), b"x", 2**70, np.zeros(3), 1j)
REDUCTIONS = ("Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block")


def opened(comm: MPI.Intracomm, **options: Any) -> None:
    with cr.init(comm, **options):
        pass


def used(world: World, **options: Any) -> None:
    with world.using(**options):
        pass


#: What a communicator is asked for with a wrong argument, and what a right one would be.
ASKED: dict[str, tuple[Callable[[World, Any], object], Any]] = {
    "using algorithm": (lambda w, x: used(w, algorithm=x), "auto"),
    "using timeout_s": (lambda w, x: used(w, timeout_s=x), None),
    "using wire": (lambda w, x: used(w, wire=x), None),
    "using compression": (lambda w, x: used(w, compression=x), None),
    "bucketed": (lambda w, x: w.bucketed(x), {"a": np.zeros(2)}),
    "bucket_bytes": (lambda w, x: w.bucketed({"a": np.zeros(2)}, x), 8),
    "bucketed op": (lambda w, x: w.bucketed({"a": np.zeros(2)}, 8, x), cr.MEAN),
    "empty shape": (lambda w, x: w.empty(x), 3),
    "empty dtype": (lambda w, x: w.empty(3, x), "f8"),
    "Split color": (lambda w, x: w.Split(x), 0),
    "Split key": (lambda w, x: w.Split(0, x), 0),
    "Split_type": (lambda w, x: w.Split_type(x), MPI.COMM_TYPE_SHARED),
    "Split_type key": (lambda w, x: w.Split_type(MPI.COMM_TYPE_SHARED, x), 0),
    "Dup": (lambda w, x: w.Dup(x), None),
    "Create": (lambda w, x: w.Create(x), MPI.GROUP_EMPTY),
}
#: Wrong for most, but not for these.
FINE = {"using timeout_s": (1.5, 2**70), "bucket_bytes": (2**70,), "empty shape": ([1],),
        "Split key": (-1,), "Split_type": (-1,), "Split_type key": (-1,)}  # fmt: skip


def wrong_for(name: str) -> list[Any]:
    fine = FINE.get(name, ())
    found = [one for one in WRONG if not any(one is other or one == other for other in fine
                                             if type(one) is type(other))]  # fmt: skip
    return [2**70, *found] if name == "bucket_bytes" else found


def test_what_no_rank_can_use_is_refused_on_all(world: World) -> None:
    for name, (ask, _) in ASKED.items():
        for wrong in wrong_for(name):
            with pytest.raises((UsageError, cr.Unavailable)) as found:
                ask(world, wrong)
            assert getattr(found.value, "remedy", ""), (name, wrong)
    world.Barrier()


def test_what_one_rank_cannot_derive_is_named_on_all(world: World) -> None:
    last = world.size - 1
    told = "color is 'x'" if world.rank == last else f"rank {last}: color is 'x'"
    with pytest.raises(UsageError, match=f"Split: {told}"):
        world.Split("x" if world.rank == last else 0)  # type: ignore[arg-type]


def test_what_one_rank_cannot_use_is_refused_on_all(world: World) -> None:
    for name, (ask, right) in ASKED.items():
        for wrong in wrong_for(name)[:3]:
            argument = wrong if world.rank == world.size - 1 else right
            with pytest.raises((UsageError, cr.Unavailable, cr.Disagreement)):
                ask(world, argument)
    world.Barrier()


#: Options of `init` and a value that each may have.
OPTIONS = {"topology": None, "on_failure": "raise", "spares": 0, "recruits": None,
           "timeout_s": None, "recovery_timeout_s": 30, "tuning": None,
           "deterministic": False, "check": None, "faults": False}  # fmt: skip


@pytest.mark.parametrize("comm", [1, 4], indirect=True)
def test_options_of_init(comm: MPI.Intracomm) -> None:
    for option, right in OPTIONS.items():
        for wrong in (object(), "?", [1], {"a": 1}, np.zeros(3)):
            with pytest.raises((UsageError, cr.Unavailable)):
                opened(comm, **{option: wrong})
        given = [1] if comm.rank == comm.size - 1 else right
        with pytest.raises((UsageError, cr.Unavailable, cr.Revoked, cr.Disagreement)):
            opened(comm, **{option: given})
    unusable: Any
    for unusable in (5, "world", np.zeros(3), MPI.COMM_NULL):
        with pytest.raises(UsageError, match="comm is"):
            opened(unusable)
        if unusable is not MPI.COMM_NULL:
            with pytest.raises(UsageError, match="comm is"):
                cr.discover(unusable)


def test_topologies_that_differ(comm: MPI.Intracomm) -> None:
    flat = cr.Topology.regular(node=1, rank=comm.size)
    other = cr.Topology.regular(node=comm.size, rank=1)
    expected = nullcontext() if comm.size == 1 else pytest.raises(cr.Disagreement)
    with expected:
        opened(comm, topology=other if comm.rank == 0 else flat)
    with pytest.raises(cr.TopologyError, match="a topology of 9 ranks"):
        opened(comm, topology=cr.Topology.regular(rank=9))


@pytest.mark.parametrize("form", ["", "I", "_init"])
@pytest.mark.parametrize("algorithm", ["auto", "native"])
def test_ops_that_are_not_defined_on_a_type(world: World, form: str, algorithm: str) -> None:
    pair = np.zeros(world.size, np.dtype([("value", "f8"), ("place", "i4")], align=True))
    room, pairs = pair.copy(), MPI.DOUBLE_INT
    cases: list[tuple[Any, Any, MPI.Op, str]] = [
        (np.zeros(world.size, bool), np.zeros(world.size, bool), MPI.SUM, "SUM"),
        (np.zeros(world.size), np.zeros(world.size), MPI.MAXLOC, "MAXLOC"),
        (np.zeros(world.size), np.zeros(world.size), MPI.BAND, "BAND"),
        (np.zeros(world.size, "c16"), np.zeros(world.size, "c16"), MPI.MAX, "MAX"),
        ([pair, 1, pairs], [room, 1, pairs], MPI.SUM, "SUM"),
    ]
    for source, target, op, said in cases:
        for name in REDUCTIONS:
            if name == "Reduce_scatter_block" and isinstance(source, list):
                continue
            method = getattr(world, f"I{name.lower()}" if form == "I" else name + form)
            taken = target[:1] if name == "Reduce_scatter_block" else target
            with pytest.raises(UsageError, match=f"op {said} is not defined on .*; use another"):
                method(source, taken, op=op, algorithm=algorithm)
    found = np.empty(1)
    world.Allreduce(np.ones(1), found)
    assert found[0] == world.size


def test_pairs_are_still_reduced(world: World) -> None:
    pair = np.zeros(1, np.dtype([("value", "f8"), ("place", "i4")], align=True))
    pair["value"], pair["place"] = world.rank, world.rank
    found = pair.copy()
    world.Allreduce([pair, 1, MPI.DOUBLE_INT], [found, 1, MPI.DOUBLE_INT], op=MPI.MAXLOC)
    assert found["place"][0] == world.size - 1


@pytest.mark.parametrize("wrong", [float("nan"), "1", [1], object(), 1j])
def test_a_patience_that_is_no_number(world: World, wrong: Any) -> None:
    x, y = np.ones(4), np.empty(4)
    for algorithm in ("native", "recursive_doubling"):
        request = world.Iallreduce(x, y, algorithm=algorithm)
        with world.Allreduce_init(x, np.empty(4), algorithm=algorithm) as operation:
            operation.start()
            for waiting in (request, operation):
                with pytest.raises(UsageError, match="timeout_s is"):
                    waiting.wait(wrong)
                waiting.wait(20)
    assert y.tolist() == [world.size] * 4
    buckets = world.bucketed({"a": np.ones(2)})
    buckets.ready("a")
    with pytest.raises(UsageError, match="timeout_s is"):
        buckets.wait(wrong)
    buckets.wait()
    with pytest.raises(UsageError, match="no array"):
        buckets.ready([1])  # type: ignore[arg-type]


def test_questions_of_no_use(world: World) -> None:
    one = np.zeros(1)
    questions: list[Callable[[Any], object]] = [
        lambda wrong: world.explain(wrong, 8),
        lambda wrong: world.explain("allreduce", 8, wrong),
        lambda wrong: world.explain("allreduce", wrong),
        lambda wrong: world.incarnation(wrong),
        lambda wrong: world.Bcast(one, wrong),
        lambda wrong: world.Allreduce(one, one.copy(), algorithm=wrong),
        lambda wrong: world.Barrier(algorithm=wrong),
    ]
    for wrong in WRONG:
        for ask in questions:
            with pytest.raises(UsageError):
                ask(wrong)
    for wrong in (1.5, "x", [1], object()):
        for arguments in ((wrong,), (1, wrong)):
            with pytest.raises(UsageError, match="a whole number"):
                list(world.attempts(*arguments))
