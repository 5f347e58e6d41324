"""Calls that take a shortcut: right, counted once, errors explained."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.arguments.call_key import size_class
from closeranks.collectives.engine import interpreter
from closeranks.collectives.fastpath import (
    shortcut,
    shortcut_proof,
    shortcut_record,
    shortcut_versions,
)
from closeranks.collectives.plans.collective import OPERATIONS

World = cr.Communicator
COUNT = 6
METHODS = [name.capitalize() for name in OPERATIONS]


def learn(comm: World) -> None:
    """Tell a communicator that calls of COUNT elements a block are the library's."""
    for name in OPERATIONS:
        for known in (0, size_class(8 * COUNT)):
            comm._service.shortcuts.learn(name, [known], counted=False)


@pytest.fixture
def known(world: World | None) -> Iterator[World | None]:
    """A duplicate whose calls take shortcuts."""
    if world is None:
        yield None
        return
    assert interpreter.is_loaded()
    duplicate = world.Dup()
    learn(duplicate)
    yield duplicate
    duplicate.Free()


def arguments(comm: World, method: str, step: int = 1) -> tuple[Any, ...]:
    """Arguments of an operation; ``step`` 2 leaves gaps in every buffer."""
    size = comm.size
    own = np.repeat(np.arange(COUNT) + comm.rank, step)[::step]
    whole = np.repeat(np.arange(COUNT * size) * (comm.rank + 1), step)[::step]
    block, blocks = np.zeros(COUNT * step, int)[::step], np.zeros(COUNT * size * step, int)[::step]
    counts = [COUNT] * size
    known: dict[str, tuple[Any, ...]] = {
        "Barrier": (),
        "Bcast": (own,),
        "Reduce_scatter_block": (whole, block),
        "Reduce_scatter": (whole, block, counts),
        "Allgather": (own, blocks),
        "Allgatherv": (own, [blocks, counts]),
        "Gather": (own, blocks),
        "Gatherv": (own, [blocks, counts]),
        "Scatter": (whole, block),
        "Scatterv": ([whole, counts], block),
        "Alltoall": (whole, blocks),
        "Alltoallv": ([whole, counts], [blocks, counts]),
    }
    return known.get(method, (own, block))


def result(given: tuple[Any, ...]) -> list[int]:
    """What a call left in its last buffer."""
    buffers = [part[0] if isinstance(part, list) and len(part) == 2 else part for part in given]
    arrays = [buffer for buffer in buffers if isinstance(buffer, np.ndarray)]
    return arrays[-1].tolist() if arrays else []


def taken(comm: World, method: str) -> int:
    """How many calls took the shortcut."""
    return comm._service.shortcuts.calls()[method.lower(), "native"]


@pytest.mark.parametrize("method", METHODS)
def test_it_does_what_the_library_does(known: World, method: str) -> None:
    ours, theirs = arguments(known, method), arguments(known, method)
    getattr(known, method)(*ours)
    getattr(MPI.Intracomm, method)(known, *theirs)
    assert result(ours) == result(theirs)
    assert known.statistics().calls == {method.lower(): 1}
    assert taken(known, method) == 1


@pytest.mark.parametrize("method", METHODS)
def test_gaps_on_one_rank_meet_the_others(known: World, method: str) -> None:
    ours = arguments(known, method, step=2 if known.rank == 0 else 1)
    theirs = arguments(known, method)
    getattr(known, method)(*ours)
    getattr(MPI.Intracomm, method)(known, *theirs)
    assert result(ours) == result(theirs)
    assert known.statistics().calls == {method.lower(): 1}


def test_an_op_that_keeps_order_meets_the_others(known: World) -> None:
    later = MPI.Op.Create(lambda _first, _second, _type: None, commute=False)
    step = 2 if known.rank == 0 else 1
    x, y = np.full(COUNT * step, known.rank)[::step], np.zeros(COUNT * step, int)[::step]
    known.Allreduce(x, y, op=later)
    assert set(y.tolist()) == {known.size - 1}
    later.Free()


@pytest.mark.parametrize("method", ["Allgatherv", "Alltoallv"])
def test_blocks_beyond_the_buffer_are_refused(known: World, method: str) -> None:
    *rest, (buffer, counts) = arguments(known, method)
    with pytest.raises(cr.UsageError, match=method):
        getattr(known, method)(*rest, [buffer[:-1], counts])
    assert not known.statistics().calls


@pytest.mark.parametrize("method", ["Gatherv", "Scatterv", "Reduce_scatter"])
def test_a_root_that_disagrees_with_itself_is_refused(known: World, method: str) -> None:
    if known.size > 1:
        return  # the others would wait
    first, second, *rest = arguments(known, method)
    wrong = (first, second[:-1]) if method != "Gatherv" else (first[:-1], second)
    with pytest.raises(cr.UsageError, match=method):
        getattr(known, method)(*wrong, *rest)


def test_keywords_and_counts_take_it_too(known: World) -> None:
    own, blocks = np.full(COUNT, known.rank), np.zeros(COUNT * known.size, int)
    expected = np.repeat(np.arange(known.size), COUNT).tolist()
    counts = [COUNT] * known.size
    last = known.size - 1
    known.Allgatherv(own, (blocks, counts))
    assert blocks.tolist() == expected
    blocks[:] = -1
    known.Gatherv(own, [blocks, counts] if known.rank == last else None, root=last)
    assert blocks.tolist() == (expected if known.rank == last else [-1] * len(blocks))
    assert (taken(known, "Allgatherv"), taken(known, "Gatherv")) == (1, 1)
    total = np.zeros(COUNT, int)
    known.Reduce(own, total, op=MPI.MAX, root=last)
    assert (total.tolist() == [last] * COUNT) == (known.rank == last) or last == 0
    assert taken(known, "Reduce") == 1


def test_other_buffers_take_it_and_are_given_back(known: World) -> None:
    class Sized(bytearray):
        """Tells its bytes as arrays do."""

        nbytes = 8 * COUNT

    message = Sized(bytes([known.rank + 1]) * Sized.nbytes)
    for _ in range(100):
        known.Bcast(message)
    assert bytes(message) == b"\x01" * Sized.nbytes
    assert taken(known, "Bcast") == 100
    message.append(0)  # refused while anybody looks at it


def test_messages_with_counts_and_types_take_it(known: World) -> None:
    x, total, size = np.full(2 * COUNT, known.rank), np.zeros(COUNT, int), known.size
    known.Allreduce([x, COUNT, MPI.LONG], (total, MPI.LONG))
    assert total.tolist() == [sum(range(size))] * COUNT
    blocks, counts = np.zeros(COUNT * size, int), [COUNT] * size
    known.Allgatherv([x, COUNT, MPI.INT64_T], [blocks, counts, MPI.LONG])
    assert blocks.tolist() == np.repeat(np.arange(size), COUNT).tolist()
    known.Bcast([x, 8 * COUNT, MPI.BYTE])
    assert x[:COUNT].tolist() == [0] * COUNT
    assert x[COUNT:].tolist() == [known.rank] * COUNT
    assert [taken(known, name) for name in ("Allreduce", "Allgatherv", "Bcast")] == [1, 1, 1]


@pytest.mark.parametrize("method", ["Alltoall", "Reduce_scatter_block"])
def test_a_count_is_that_of_one_block(known: World, method: str) -> None:
    """Known are COUNT elements a block; as many for each of ``size`` blocks are more."""
    size = known.size
    for n, quick in ((COUNT, 1), (COUNT * size, 0)):
        given, taken_ = np.arange(n * size), np.zeros(n * size, int)
        whole = [taken_, n, MPI.LONG] if method == "Alltoall" else taken_[:n]
        before = taken(known, method)
        getattr(known, method)([given, n, MPI.LONG], whole)
        assert taken(known, method) - before == (quick or size == 1)
        mine = given.reshape(size, n)[known.rank]
        if method == "Alltoall":
            assert (taken_.reshape(size, n) == mine).all()
        else:
            assert (taken_[:n] == size * mine).all()


def test_types_that_are_not_plain_go_the_long_way(known: World) -> None:
    apart = MPI.LONG.Create_vector(COUNT // 2, 1, 2).Commit()
    x = np.full(COUNT, known.rank)
    known.Bcast([x, 1, apart])
    assert x[::2].tolist() == [0] * (COUNT // 2)
    assert x[1::2].tolist() == [known.rank] * (COUNT // 2)
    with pytest.raises((cr.UsageError, ValueError)):
        known.Bcast([x, COUNT + 1, MPI.LONG])
    assert taken(known, "Bcast") == 0
    apart.Free()


def test_what_it_cannot_take_goes_the_long_way(known: World) -> None:
    own, blocks = np.full(COUNT, known.rank), np.zeros(COUNT * known.size, int)
    counts = [COUNT] * known.size
    places = [COUNT * rank for rank in range(known.size)]
    known.Bcast(own, algorithm="native")
    known.Bcast(buf=own)
    known.Bcast([own, "l"])
    known.Bcast(own[:2])  # of another size class, which that call has made known
    known.Allgather(own, blocks, algorithm="auto")
    known.Allgatherv(own, [blocks, (counts, places)])
    known.Allgatherv(own, [blocks, tuple(counts), places, MPI.LONG])
    known.Allgatherv(own, [blocks, np.array(counts)])
    calls = known.statistics().calls
    assert calls == {"bcast": 4, "allgather": 1, "allgatherv": 3}
    # A keyword of ours, or a buffer named, is told apart by the method, which asks again.
    shortcuts = {name: n for (name, _), n in known._service.shortcuts.calls().items() if n}
    assert shortcuts == {"bcast": 2, "allgather": 1}


def test_in_place_takes_it_where_the_size_stands_in_what_is_received(known: World) -> None:
    total = np.full(COUNT, known.rank)
    known.Allreduce(MPI.IN_PLACE, total)
    assert total.tolist() == [sum(range(known.size))] * COUNT
    assert taken(known, "Allreduce") == 1


@pytest.mark.parametrize(
    "wrong",
    [(None,), (), (np.zeros(COUNT), -1), (np.zeros(COUNT), 0.5), (np.zeros(COUNT), 1 << 70),
     (np.zeros(COUNT), 0, 1), (np.zeros(COUNT), "0")],
)  # fmt: skip
def test_nonsense_is_told_as_the_method_tells_it(known: World, wrong: tuple[Any, ...]) -> None:
    told = []
    for call in (known.Bcast, type(known).Bcast.__get__(known)):
        with pytest.raises((TypeError, ValueError, OverflowError)) as error:
            call(*wrong)
        told.append((type(error.value), str(error.value)))
    assert told[0] == told[1]
    assert taken(known, "Bcast") == 0


@pytest.mark.parametrize("counts", [[-1, 9], [1 << 62] * 4, [0.5], "ab", None, [None]])
def test_counts_that_are_none_go_the_long_way(known: World, counts: Any) -> None:
    blocks = np.zeros(COUNT * known.size, int)
    with suppress(cr.UsageError, TypeError, ValueError, MPI.Exception):
        if known.size == 1:
            known.Gatherv(blocks, [blocks, counts])
    assert taken(known, "Gatherv") == 0


def test_all_sizes_of_a_class_are_known(known: World) -> None:
    buffer, wanted = np.zeros(2000, np.uint8), np.arange(2000).astype(np.uint8)
    known._service.shortcuts.learn("bcast", range(1, 11), counted=False)
    for n in range(1, 1024):
        buffer[:] = wanted if known.rank == 0 else 0
        known.Bcast(buffer[:n])
        assert (buffer[:n] == wanted[:n]).all()
        assert known.rank == 0 or not buffer[n:].any()
    assert taken(known, "Bcast") == 1023
    known.Bcast(buffer[:1024])  # of another class
    assert known.statistics().calls == {"bcast": 1024}
    assert taken(known, "Bcast") == 1023


def test_nothing_is_leaked(known: World) -> None:
    counts, block = [COUNT + 1000] * known.size, np.zeros(COUNT + 1000)
    blocks = np.zeros((COUNT + 1000) * known.size)
    spec = [blocks, counts]
    known._service.shortcuts.learn("allgatherv", [size_class(block.nbytes)], counted=False)
    everything = (spec, counts, block, blocks, counts[0], known)
    before = [sys.getrefcount(thing) for thing in everything]
    for _ in range(100):
        known.Allgatherv(block, spec)
    assert [sys.getrefcount(thing) for thing in everything] == before
    assert taken(known, "Allgatherv") == 100


def test_errors_of_the_library_are_explained_once(known: World) -> None:
    x, y = np.zeros(COUNT), np.zeros(COUNT)
    with pytest.raises(MPI.Exception) as error:  # bits of numbers that have none
        known.Allreduce(x, y, op=MPI.BAND)
    assert error.value.Get_error_class() == MPI.ERR_OP, "what nobody died of stays what it is"
    del error
    heard = []

    def explain(operation: str, error: MPI.Exception) -> Exception:
        heard.append((operation, error.Get_error_class()))
        return cr.PeerLost(operation, [0])

    known._service.shortcuts.explain = explain
    before = [sys.getrefcount(thing) for thing in (x, y, known, explain)], _errors()
    for _ in range(100):
        with pytest.raises(cr.PeerLost):
            known.Allreduce(x, y, op=MPI.BAND)
    assert heard == [("allreduce", MPI.ERR_OP)] * 100
    assert before == ([sys.getrefcount(thing) for thing in (x, y, known, explain)], _errors())
    assert taken(known, "Allreduce") == 0


def _errors() -> int:
    """How many errors of the library are alive."""
    gc.collect()
    return sum(type(thing) is MPI.Exception for thing in gc.get_objects())


def test_a_method_that_was_held_on_to_takes_it(known: World) -> None:
    before = type(known).Allreduce.__get__(known)
    x, y = np.full(COUNT, 1), np.zeros(COUNT, int)
    before(x, y)
    assert y.tolist() == [known.size] * COUNT
    before(x[:-1], y[:-1])  # of the same size class
    assert taken(known, "Allreduce") == 2
    before(x[:2], y[:2])
    assert taken(known, "Allreduce") == 2


def test_options_forbid_it_and_their_end_allows_it(known: World) -> None:
    buffer = np.zeros(COUNT)
    known.Bcast(buffer)
    with known.using(algorithm="native"):
        known.Bcast(buffer)
        assert taken(known, "Bcast") == 1
    known.Bcast(buffer)
    assert taken(known, "Bcast") == 2


def test_a_method_of_ones_own_is_not_replaced(known: World) -> None:
    class Louder(cr.Communicator):
        def Bcast(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("heard")

    service = known._service
    louder = Louder.adopt(
        MPI.Intracomm(service.plain.Dup()),
        service.family,
        known.hierarchy,
        chooser=service.chooser,
        seats=known.membership.seats,
    )
    learn(louder)
    with pytest.raises(RuntimeError, match="heard"):
        louder.Bcast(np.zeros(COUNT))
    louder.Allreduce(np.zeros(COUNT), np.zeros(COUNT))
    assert taken(louder, "Allreduce") == 1
    louder.Free()


def test_the_code_is_proven_on_sentinels_and_listed(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size > 1:
        return
    assert interpreter.is_loaded()
    assert shortcut_proof.holds(), "what stands in memory here is not what the code reads"
    listed = shortcut_versions.are_listed()
    assert listed, f"add {shortcut_versions.versions()} to PROVEN in shortcut_versions"
    types = shortcut_record._plain().copy()
    types[:, 2] = np.roll(types[:, 2], 1)  # each datatype means another type
    monkeypatch.setattr(shortcut_record, "_plain", lambda: types)
    assert not shortcut_proof.holds()


def test_shortcuts_are_off_where_nobody_has_proven_them(
    world: World | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world is None or world.size != 2:
        return
    monkeypatch.setattr(shortcut_versions, "PROVEN", frozenset())
    shortcut.are_proven.cache_clear()
    try:
        with world.Dup() as duplicate:
            learn(duplicate)
            room = np.zeros(COUNT, int)
            duplicate.Allreduce(np.ones(COUNT, int), room)
            assert room.tolist() == [2] * COUNT
            assert not duplicate._service.shortcuts.probes
    finally:
        shortcut.are_proven.cache_clear()


@pytest.mark.usefixtures("hurried")
def test_another_thread_may_forbid_them_while_sizes_are_learned(world: World) -> None:
    duplicate, failed, over = world.Dup(), [], threading.Event()
    shortcuts = duplicate._service.shortcuts
    assert shortcuts.asked_for("native") is not None

    def forbid() -> None:
        try:
            while not over.is_set():
                shortcuts.allow(False)
                shortcuts.allow(True)
            shortcuts.allow(False)
        except Exception as error:
            failed.append(error)

    forbidding = threading.Thread(target=forbid)
    forbidding.start()
    for turn in range(300):
        for name in OPERATIONS:
            shortcuts.learn(name, [turn % 64], counted=False)
    over.set()
    forbidding.join()
    assert not failed
    assert not shortcuts.probes
    assert not [name for name in METHODS if name in vars(duplicate)]
    duplicate.Free()
