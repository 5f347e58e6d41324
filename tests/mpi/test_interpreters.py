"""Compiled code does what the reference does: step for step, and on real ranks."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.builders.catalogue import algorithms
from closeranks.collectives.engine import bound_plan, execution_arrays, interpreter
from closeranks.collectives.engine import bound_plan as ways
from closeranks.collectives.engine import loop_layout as sweep
from closeranks.collectives.engine.bound_plan import Bound
from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.engine.execution import Execution, Fast
from closeranks.collectives.engine.execution_arrays import ExecutionLayout
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.plans.apply_kernels import KERNELS
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.identity import Identity
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import Schedule
from closeranks.comms.jit import code_cache
from closeranks.comms.topology.link import Link
from closeranks.comms.wait import Deadline
from closeranks.errors import Revoked, UsageError
from tests.collectives.shape.ring import ring
from tests.mpi.expected import cases
from tests.mpi.ground import bind, opened, rounds, start, toy
from tests.mpi.pretended import pretended

Steps = Generator[None, None, None]
BOTH = (Execution, Fast)
ITEMS = 24


@pytest.fixture
def alone() -> MPI.Intracomm:
    """A communicator of this rank: what is pretended here concerns nobody else."""
    return MPI.COMM_SELF


def _block(chance: random.Random, room: int, items: int) -> Block:
    """A block of ``items``, in one run or in several."""
    buffer = chance.choice([OUTPUT, room])
    if items % 2 == 0 and chance.random() < 0.4:
        stride = items // 2 + chance.randrange(3)
        last = ITEMS - stride - items // 2
        return Block(buffer, chance.randrange(last + 1), items // 2, 2, stride)
    return Block(buffer, chance.randrange(ITEMS - items + 1), items)


def anything(seed: int) -> Callable[[Schedule, Problem], Steps]:
    """Write a random graph of steps of every kind that needs no other rank."""

    def build(out: Schedule, _: Problem) -> Steps:
        chance = random.Random(seed)
        room = out.scratch(ITEMS)
        for step in range(40):
            items = chance.choice([1, 2, 4, 6])
            block, other = _block(chance, room, items), _block(chance, room, items)
            after = tuple(sorted(chance.sample(range(step), min(step, chance.randrange(4)))))
            kind = chance.choice(["send", "receive", "late", "reduce", "copy", "apply", "event"])
            if kind == "send":
                out.send(1, block, step, after)
            elif kind in ("receive", "late"):
                out.receive(1, block, step, after, optional=kind == "late")
            elif kind == "reduce":
                out.reduce(other, block, after)
            elif kind == "copy":
                out.copy(other, block, after)
            elif kind == "event":
                out.event(step, after)
            else:
                need = chance.randrange(len(after)) if len(after) > 1 else None
                early = need is not None
                reads = [Block(INPUT, place, 1) for place in range(len(after) if early else 1)]
                kernel = "sum_arrived" if early else "copied"
                target = Block(room, step % ITEMS, 1)
                out.apply(kernel, reads, [target], after=after, need=need)
        yield

    return build


class Event:
    """Happens at the third look; tells the log of each."""

    def __init__(self, log: list[Any], number: int) -> None:
        self.log, self.number, self.looks = log, number, 0

    def __call__(self) -> bool:
        self.log.append(("event", self.number))
        self.looks += 1
        return self.looks > 2


def _story(
    kind: type[Execution], seed: int, patch: pytest.MonkeyPatch, **wrong: int
) -> tuple[list[Any], bytes, Execution]:
    """Run a random plan, a look at a time; what was done, and what it left."""
    with pretended(patch, **wrong) as (world, library):
        problem = Problem("allreduce", world.topology, count=ITEMS)
        plan = Plan(problem, Algorithm("toy", anything(seed)))
        data, output = np.arange(ITEMS, dtype="i8"), np.zeros(ITEMS, "i8")
        bound = bind(plan, world, data, output, events=[Event(library.log, n) for n in range(40)])
        for buffer in bound.memory[2:]:
            assert buffer is not None
            buffer[:] = 1
        for sequence in range(2):
            for event in bound.events:
                event.looks = 0  # type: ignore[attr-defined]
            execution = kind(bound, Identity(0, sequence))
            execution.when_finished(lambda done: library.log.append(("told", done.completed)))
            for _ in range(500):
                execution.advance()
                library.log.append((execution.completed, execution.finished, execution.drained))
                if execution.drained or execution.error is not None:
                    break
            if execution.error is not None:
                break
        return library.log, output.tobytes() + bytes(map(int, execution.done)), execution


def _copied(source: np.ndarray, target: np.ndarray) -> None:
    target[:] = source


def test_step_for_step(alone: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    assert alone.size == 1
    monkeypatch.setitem(KERNELS, "copied", _copied)
    for seed in range(150):
        expected, memory, done = _story(Execution, seed, monkeypatch)
        log, found, execution = _story(Fast, seed, monkeypatch)
        assert log == expected, f"plan {seed}"
        assert found == memory, f"plan {seed}"
        assert done.drained
        assert execution.drained
        assert sum(entry[0] == "told" for entry in log) == 2


@pytest.mark.parametrize("wrong", ["fails", "breaks"])
def test_the_same_error_at_the_same_step(
    alone: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    assert alone.size == 1
    monkeypatch.setitem(KERNELS, "copied", _copied)
    monkeypatch.setattr(Execution, "fail", _keep)
    monkeypatch.setattr(Fast, "fail", _keep)
    met = set()
    for seed in range(60):
        expected, _, reference = _story(Execution, seed, monkeypatch, **{wrong: seed % 40})
        log, _, execution = _story(Fast, seed, monkeypatch, **{wrong: seed % 40})
        assert str(execution.error) == str(reference.error)
        if execution.error is None or wrong == "fails":
            assert log == expected
        if isinstance(execution.error, MPI.Exception):
            met.add(execution.error.Get_error_class())
    assert met == {MPI.ERR_OTHER if wrong == "fails" else MPI.ERR_TRUNCATE}


def _keep(execution: Execution, error: BaseException) -> None:
    """Keep an error; the messages are pretended, there is nothing to cancel."""
    execution.error = error


def flight(kind: type[Execution], bound: Bound) -> Execution:
    world = bound.world
    execution = kind(bound, Identity(world.epoch, world.sequence()), deadline=Deadline(20))
    engine().start(execution)
    return execution


def test_what_the_loop_runs_itself(alone: MPI.Intracomm) -> None:
    def build(out: Schedule, _: Problem) -> Steps:
        comb = Block(OUTPUT, 0, 2, 3, 4)
        out.copy(Block(INPUT, 0, 6), comb)
        out.copy(Block(OUTPUT, 0, 2, 2, 3), Block(OUTPUT, 1, 2, 2, 3))  # they overlap
        out.reduce(Block(INPUT, 0, 4), Block(OUTPUT, 0, 4))
        out.send(0, comb, 1)
        out.receive(0, Block(INPUT, 0, 6), 1)
        out.event(0)
        yield

    with opened(alone) as world:
        plan = toy(1, build, 12)
        bound = bind(plan, world, np.ones(12, "f4"), np.zeros(12, "f4"))
        assert ExecutionLayout(bound).rows[:, sweep.WAY].tolist() == [
            sweep.COPY, sweep.PYTHON, sweep.REDUCE, sweep.PACKED_SEND, sweep.RECEIVE, sweep.PYTHON,
        ]  # fmt: skip
        own = bind(plan, world, np.ones(12, "f4"), np.zeros(12, "f4"), reducer=lambda *_: None)
        assert ExecutionLayout(own).rows[2, sweep.WAY] == sweep.PYTHON, "a function of the user's"
        odd = np.zeros(49, "u1")[1:].view("f4")
        assert ExecutionLayout(bind(plan, world, odd, odd)).rows[2, sweep.WAY] == sweep.PYTHON


def test_other_memory_is_noticed(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        bound = bind(ring(comm.size, 9), world, np.ones(9, "f4"), np.zeros(9, "f4"))
        for number in range(3):
            data, output = np.full(9, number, "f4"), np.zeros(9, "f4")
            bound.attach(data.view("u1"), output.view("u1"))
            engine().wait(flight(Fast, bound))
            assert (output == comm.size * number).all()
        data = np.ones(9, "f4")
        bound.attach(data.view("u1"), data.view("u1"))
        assert bound.ways[0] == ways.DROPPED
        engine().wait(flight(Fast, bound))
        assert (data == comm.size).all()


def test_a_shift_is_what_writing_anew_gives(alone: MPI.Intracomm) -> None:
    """Rows that followed the caller's memory are those of a layout made there."""

    def build(out: Schedule, _: Problem) -> Steps:
        room = out.scratch(12)
        out.copy(Block(INPUT, 0, 6), Block(OUTPUT, 0, 6))
        out.copy(Block(INPUT, 0, 2, 3, 4), Block(room, 0, 6))
        out.reduce(Block(INPUT, 2, 4), Block(OUTPUT, 2, 4))
        out.reduce(Block(OUTPUT, 0, 4), Block(room, 4, 4))
        out.send(0, Block(INPUT, 1, 6), 1)
        out.receive(0, Block(OUTPUT, 3, 6), 1)
        yield

    with opened(alone) as world:
        data = np.zeros(400, "u1")
        data = data[-data.ctypes.data % 16 :]
        bound = bind(toy(1, build, 12), world, data[:48].view("f4"), data[64:112].view("f4"))
        layout = ExecutionLayout(bound)
        written = []
        for first, second in ((128, 64), (0, 128), (0, 0), (64, 64), (0, 8), (16, 24), (1, 65)):
            bound.attach(data[first:][:48], data[second:][:48])
            written.append(not layout._shift(bound))
            layout.follow_memory(bound)
            fresh = ExecutionLayout(bound).rows
            used = fresh[:, sweep.WAY] != sweep.PYTHON
            np.testing.assert_array_equal(layout.rows[:, sweep.WAY], fresh[:, sweep.WAY])
            columns = {sweep.COPY: [9, 10, 12, 13, 14, 15], sweep.REDUCE: [9, 10, 11]}
            for row, other in zip(layout.rows[used], fresh[used], strict=True):
                chosen = columns.get(int(row[sweep.WAY]), [6, 7, 8])
                if row[sweep.WAY] != sweep.NOTHING:
                    np.testing.assert_array_equal(row[chosen], other[chosen])
        assert written == [False, False, True, False, True, False, True]


def test_interpreters_talk_to_each_other(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        output = np.zeros(5000, "f4")
        bound = bind(ring(comm.size, 5000), world, np.ones(5000, "f4"), output)
        for number in range(6):
            engine().wait(flight(BOTH[(comm.rank + number) % 2], bound))
            assert (output == comm.size).all()


@pytest.mark.parametrize("n", [1, 6])
def test_a_truncated_message_is_the_same_error(alone: MPI.Intracomm, n: int) -> None:
    if "Open MPI" in MPI.Get_library_version():
        pytest.skip("Open MPI cuts what a rank sends to itself, and says nothing")
    errors = []
    for kind in BOTH:

        def build(out: Schedule, _: Problem) -> Steps:
            out.receive(0, Block(OUTPUT, 0, 2), 1)
            for slot in range(n):  # nobody sends them
                out.receive(0, Block(OUTPUT, 2, 2), 2 + slot)
            out.send(0, Block(INPUT, 0, 4), 1)
            yield

        with opened(alone) as world:
            execution = flight(kind, bind(toy(1, build), world, np.ones(4), np.zeros(4)))
            with pytest.raises(MPI.Exception) as caught:
                engine().wait(execution)
            errors.append(caught.value.Get_error_class())
            assert world.revoked
            rounds(100)
            assert execution.drained, "the receive was cancelled, the buffers are free"
    assert errors == [MPI.ERR_TRUNCATE] * 2


def test_late_ranks_are_named(comm: MPI.Intracomm) -> None:
    def build(out: Schedule, problem: Problem) -> Steps:
        for slot in range(3):
            out.receive((out.rank + 1) % problem.size, Block(OUTPUT, slot, 1), slot)
        yield

    for kind in BOTH:
        with opened(comm) as world:
            bound = bind(toy(comm.size, build), world, np.ones(4, "f4"), np.zeros(4, "f4"))
            execution = flight(kind, bound)
            assert execution.awaited() == ((comm.rank + 1) % comm.size,)
            comm.Barrier()
            world.revoke()
            with pytest.raises(Revoked):
                engine().wait(execution)
            rounds(100)
            assert execution.drained
            comm.Barrier()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["python", "compiled"])
def test_every_operation_and_algorithm(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CLOSERANKS_INTERPRETER", name)
    node = [rank // 2 for rank in range(comm.size)]
    links = {"node": Link(1e-4, 1e4)}  # so slow that messages are cut
    topology = cr.Topology.from_groups(("node", "rank"), [node, list(range(comm.size))], links)
    monkeypatch.setattr(bound_plan, "PIECE_BYTES", 16)
    used: dict[str, int] = {}
    with cr.init(comm, topology=topology) as world:
        for root in range(world.size):
            for number, sample in enumerate(cases(world.rank, world.size, root)):
                for algorithm in algorithms(sample.method.lower()):
                    case = cases(world.rank, world.size, root)[number]
                    if not _served(world, case, algorithm):
                        continue
                    used[case.method] = used.get(case.method, 0) + 1
                    if case.result is not None:
                        np.testing.assert_array_equal(case.out, case.result, algorithm)
        assert len(used) == len(cases(0, world.size, 0))
        assert world._service.world.compiled is (name == "compiled")


def _served(world: cr.Communicator, case: Any, algorithm: str) -> bool:
    """Make a call; False where the algorithm says that it cannot."""
    try:
        getattr(world, case.method)(*case.arguments, algorithm=algorithm)
    except UsageError as error:
        if "cannot:" not in str(error):
            raise
        return False
    return True


def test_a_setting_that_means_nothing_is_refused(
    alone: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOSERANKS_INTERPRETER", "fast")
    with pytest.raises(UsageError, match="compiled or python"), opened(alone):
        pass


def test_without_numba_python_runs_the_plans(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = (interpreter.is_loaded, execution_arrays.load_loop, code_cache.address_of)
    for function in cached:
        function.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(code_cache, "_read", lambda *_: None)  # nor has anybody compiled before
        patch.setitem(sys.modules, "numba", None)
        with opened(comm) as world:
            assert world.compiled is False
            output = np.zeros(7, "f4")
            execution = start(bind(ring(comm.size, 7), world, np.ones(7, "f4"), output))
            engine().wait(execution)
            assert type(execution) is Execution
            assert (output == comm.size).all()
    for function in cached:
        function.cache_clear()
    assert interpreter.is_loaded()


@pytest.mark.parametrize("stored", [False, True])
def test_who_waits_loads_what_is_there_and_compiles_nothing(
    stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[bool] = []
    monkeypatch.setattr(code_cache, "is_stored", lambda *_: stored)
    monkeypatch.setattr(interpreter, "is_loaded", lambda: loads.append(True))
    interpreter.load_early()
    assert loads == [True] * stored


@pytest.mark.parametrize("stored", [False, True])
def test_init_loads_what_is_there_and_compiles_nothing(
    comm: MPI.Intracomm, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise AssertionError("compiled in init")

    assert interpreter.is_loaded()
    cached = (interpreter.is_loaded, execution_arrays.load_loop, code_cache.address_of)
    for function in cached:
        function.cache_clear()
    monkeypatch.setattr(interpreter._Loaded, "tried", False)
    with monkeypatch.context() as patch:
        patch.setattr(code_cache, "_compile", refuse)
        if not stored:
            patch.setattr(code_cache, "_read", lambda *_: None)
        with cr.init(comm):
            assert interpreter.is_at_hand() == stored
    for function in cached:
        function.cache_clear()
    assert interpreter.is_loaded()


def test_where_nothing_can_be_compiled_python_and_the_library_do_all(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    cached = (interpreter.is_loaded, execution_arrays.load_loop, code_cache.address_of)
    for function in cached:
        function.cache_clear()
    gaps = np.arange(20000.0)[::2] * (comm.rank == 0)
    with cr.init(comm) as world:
        for name in ("auto", "shared", "ring") if comm.size > 1 else ("auto",):
            output = np.zeros(7, "f4")
            for _ in range(20):
                world.Allreduce(np.ones(7, "f4"), output, algorithm=name)
            assert (output == comm.size).all()
        world.Bcast(gaps, 0, algorithm="auto" if comm.size == 1 else "binomial")
        assert gaps[-1] == 19998.0
    for function in cached:
        function.cache_clear()


def test_nobody_waits_where_starting_is_local(comm: MPI.Intracomm) -> None:
    """Ranks that have not loaded run the reference until the node's first rank has."""
    with opened(comm) as world:
        assert world.compiled
    topology = cr.Topology.regular(node=1, rank=comm.size)
    other = World(1, comm, topology)
    loaded, interpreter._Loaded.tried = interpreter._Loaded.tried, False
    if comm.rank > 0:
        interpreter.prepare(other, together=False)
        assert other.compiled is None
    comm.Barrier()
    if comm.rank == 0:
        interpreter.prepare(other, together=False)
    comm.Barrier()
    interpreter.prepare(other, together=False)
    assert other.compiled
    interpreter._Loaded.tried = loaded
    other.close()
