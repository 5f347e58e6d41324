"""Runs a sequence on the ranks of a communicator: our calls against mpi4py's."""

from __future__ import annotations

import gc
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from mpi4py import MPI

import closeranks as cr
from closeranks.comms.exit import signal_handlers
from tests.fuzz import reductions
from tests.fuzz.buffers import GUARD, Part, Pool
from tests.fuzz.comparison import finish, is_equal_in_meaning, put
from tests.fuzz.elements import KINDS, Bytes, put_noise, put_values
from tests.fuzz.reference import Pair, refer
from tests.fuzz.refusals import spoilt
from tests.fuzz.shapes import (
    IN_PLACE,
    REDUCING,
    Step,
    arguments,
    method_of,
    result_entries,
    room_for,
    shapes,
)
from tests.fuzz.watchdog import Watchdog
from tests.mpi.served import Served

#: What a call that every rank must refuse may raise.
REFUSALS = (cr.Error, MPI.Exception, ValueError, TypeError, BufferError)
_PREDEFINED = (
    "SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR", "MAXLOC", "MINLOC",
)  # fmt: skip
#: Where a call of ours waits for others.
_WAITING = ("comms/wait.py",)


class Interruption(Exception):
    """What the handler of the alarm raises."""


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Raise where a call waits: before the others count on it nobody can tell it from none.

    Where handlers are held, who raises for longer than they wait ends the job, as it is told.
    """
    while not signal_handlers.are_deferred() and frame is not None:
        if frame.f_code.co_filename.endswith(_WAITING):
            raise Interruption
        frame = frame.f_back


class Pending(NamedTuple):
    """A request that nobody has waited for, and what must then be there."""

    number: int
    step: Step
    request: Any
    sides: Pair
    wanted: list[Bytes | None]


class Runner:
    """Runs one sequence.  Collective.

    Parameters
    ----------
    world : MPI.Intracomm
        A communicator of mpi4py of all ranks.
    sequence : dict
        See `tests.fuzz.sequences`.
    trace : file
        Takes what was wrong, at once.
    watchdog : Watchdog
        Is told of each step.

    Attributes
    ----------
    failure : dict or None
        The first thing that was wrong on this rank.
    calls : Counter
        Operation -> how many calls of ours were compared.
    refused : Counter
        Why calls were left out -> how many.
    """

    def __init__(
        self, world: MPI.Intracomm, sequence: dict[str, Any], trace: Any, watchdog: Watchdog
    ) -> None:
        self._world, self._sequence, self._trace = world, sequence, trace
        self._watchdog = watchdog
        self.failure: dict[str, Any] | None = None
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._own = reductions.make()
        self._ops = self._own | {f"MPI.{name}": getattr(MPI, name) for name in _PREDEFINED}
        self._comms: dict[int, tuple[Any, MPI.Intracomm]] = {}
        self._pending: list[Pending] = []
        self._junk: list[Bytes] = []
        self._keeps: list[Any] = []
        self._is_over, self._at = False, -1

    def run(self) -> None:
        """Run all steps, then close."""
        self._arm()
        signal.signal(signal.SIGALRM, _interrupt)
        opened = cr.init(self._world, **self._sequence["options"])
        self._comms[0] = opened, self._world.Dup()
        self._served = Served(self._world)
        self._ours = Pool(lambda nbytes: opened.empty(nbytes, np.uint8))
        self._theirs = Pool()
        for number, step in enumerate(self._sequence["steps"]):
            self._at = number
            self._arm()
            if self._is_over:
                break
            self._steps[step["do"]](self, step)
        self._at += 1
        self._arm()
        self._guarded("served", self._served.close)
        if self._is_over:  # given up after a signal: nothing more is promised
            with suppress(Exception):
                self._close()
            return
        self._guarded("finish", lambda: self._finish({"how": "forward"}))
        self._guarded("junk", self._check_junk)
        self._guarded("close", self._close)

    def _arm(self) -> None:
        self._watchdog.arm(1.0 if self.failure is None else 0.25)

    def _close(self) -> None:
        self._ours = Pool()
        for number, (ours, plain) in sorted(self._comms.items(), reverse=True):
            ours.close() if number == 0 else ours.Free()
            plain.Free()
        for op in self._own.values():
            op.Free()

    def _fail(self, what: str, detail: str) -> None:
        if self.failure is None:
            self.failure = {"step": self._at, "what": what, "detail": detail}
            self._trace.write(f"step {self._at}: {what}: {detail}\n")
            self._trace.flush()

    def _guarded(self, what: str, act: Callable[[], object]) -> bool:
        """Do something that must not raise; tells whether it did not."""
        try:
            act()
        except Exception:
            self._fail(f"{what} raised", traceback.format_exc(limit=-6))
            return False
        return True

    def _comm(self, number: int) -> tuple[Any, MPI.Intracomm]:
        """Give one of our communicators and mpi4py's with the same ranks."""
        if number not in self._comms:
            ours, plain = self._comms[0]
            make: Callable[[Any], Any] = {
                1: lambda one: one.Dup(),
                2: lambda one: one.Split(plain.rank % 2, plain.rank),
                3: lambda one: one.Split(0, -plain.rank),
            }.get(number, lambda one: one.Dup())
            self._comms[number] = make(ours), make(plain)
        return self._comms[number]

    def _free(self, step: Step) -> None:
        """Free a communicator, to be made anew; what is under way comes to its end before."""
        self._finish({"how": "Waitall"})
        if step["comm"] in self._comms:
            for one in self._comms.pop(step["comm"]):
                one.Free()

    # One call ------------------------------------------------------------------------------

    def _call(self, step: Step) -> None:
        """Do a call both ways, as often as the step says, and compare."""
        act = self._prepared(step)
        try:
            act()
        except Exception:
            self._fail("raised", traceback.format_exc(limit=-8))

    def _threads(self, step: Step) -> None:
        """Make calls of several threads at once, each on a communicator of its own."""
        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            return
        acts = [[self._prepared(call) for call in calls] for calls in step["calls"]]
        started = [threading.Thread(target=self._all, args=(one,), daemon=True) for one in acts]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()

    def _all(self, acts: list[Callable[[], None]]) -> None:
        for act in acts:
            try:
                act()
            except Exception:
                self._fail("raised", traceback.format_exc(limit=-8))

    def _signal(self, step: Step) -> None:
        """Let a signal's handler raise on one rank in a call; the others must go on."""
        call = step["calls"][0][0]
        if step["warm"]:
            self._call(call)
        act = self._prepared(call)
        self._world.Barrier()
        ended = "done"
        try:
            if self._world.rank == step["rank"]:
                signal.setitimer(signal.ITIMER_REAL, step["ms"] / 1000, 0.002)
            elif step["late"]:
                time.sleep(step["late"] / 1000)
            act()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interruption:
            ended = "interrupted"
            self.calls["interrupted"] += 1
        except cr.Revoked as error:
            ended = str(error)
        except Exception:
            self._fail("raised", traceback.format_exc(limit=-8))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._keeps.append(act)
        if "interrupted" in self._world.allgather(ended):
            try:  # whoever gave the communicator up tells the others at the next call
                self._comms[call["comm"]][0].Barrier(algorithm="dissemination")
            except cr.Revoked as error:
                ended = str(error)
        endings = self._world.allgather(ended)
        self._is_over = any(one not in ("done", "interrupted") for one in endings)

    def _prepared(self, step: Step) -> Callable[[], None]:
        """Do a call by mpi4py, and give what does ours, and compares."""
        ours, plain = self._comm(step["comm"])
        self._reserve(step)
        if step["vary"] and self._world.rank % 2:
            step = _plainer(step)
        both = shapes(step, plain.rank, plain.size)
        lasts = step["mode"] == "I" and step["wait"] in ("late", "drop")
        pool = Pool() if lasts else self._ours
        theirs = _sides(self._theirs, step, both)
        mine = _sides(pool, step, both)
        salts = [step["salt"], step["salt"] + 1][: step["repeat"]]
        frames = []
        for salt in salts:
            given = self._filled(step, theirs, both, salt)
            try:
                refer(plain, step, both, theirs, self._ops)
            except (ValueError, TypeError, KeyError, MPI.Exception) as error:
                self.refused[f"mpi4py: {step['op']}: {type(error).__name__}: {error}"] += 1
                return lambda: None
            frames.append((given, [None if one is None else one.window.copy() for one in theirs]))
        if step["skew"] and self._world.rank == step["skew"][0]:
            time.sleep(step["skew"][1] / 1000)
        if step.get("need"):
            rank, what = step["need"]
            {"window": self._served.count, "message": self._served.send}[what](rank)
        del pool, theirs
        serve = {"": self._blocking, "I": self._started, "_init": self._persistent}[step["mode"]]
        held = [mine]
        del mine  # who drops a request drops its memory

        def act() -> None:
            try:
                serve(step, ours, both, held.pop(), frames)
            except cr.UsageError as error:
                if not self._may_refuse(step):
                    self._fail("raised", traceback.format_exc(limit=-8))
                self.refused[f"ours: {step['op']}: {error}"] += 1

        return act

    def _may_refuse(self, step: Step) -> bool:
        """Whether a way was asked for that need not be able to."""
        options = self._sequence["options"]
        return step["algorithm"] != "auto" or "deterministic" in options

    def _reserve(self, step: Step) -> None:
        """Make room in node memory, on all ranks, whoever needs it."""
        for side in ("send", "recv"):
            if step[side]["owner"] == "shared":
                size = self._world.size
                step[side]["room"] = room_for(step, side, size)
                given = {**step[side], "form": "array"}
                self._ours.side(given, "u1", Part(0, 0))
                step[side]["fresh"] = False

    def _filled(self, step: Step, sides: Pair, both: Any, salt: int) -> list[Bytes | None]:
        """Fill memory with what goes in; returns copies."""
        for number, side in enumerate(sides):
            if side is None:
                continue
            put_noise(side.window, self._world.rank, salt + 5 * number)
            if number == 0 or both[0] == IN_PLACE or step["op"] == "bcast":
                if KINDS[step["kind"]].is_derived or step["op"] not in REDUCING:
                    continue
                put_values(side.entries, step["reduce"], self._world.rank, salt)
        return [None if side is None else side.window.copy() for side in sides]

    def _arguments(self, step: Step, ours: Any, both: Any, mine: Pair) -> Callable[[], Any]:
        """Bind the arguments of our call."""
        specs = [
            MPI.IN_PLACE if shape == IN_PLACE else None if side is None else side.spec
            for shape, side in zip(both, mine, strict=True)
        ]
        op = cr.MEAN if step["reduce"] == "cr.MEAN" else self._ops.get(step["reduce"] or "")
        given, named = arguments(step, ours.size, specs[0], specs[1], op)
        if step["algorithm"] != "auto":
            named["algorithm"] = step["algorithm"]
        method = method_of(step)
        return lambda: getattr(ours, method)(*given, **named)

    def _blocking(self, step: Step, ours: Any, both: Any, mine: Pair, frames: Any) -> None:
        call = self._arguments(step, ours, both, mine)
        for turn in range(step["repeat"]):
            given, wanted = frames[turn % len(frames)]
            put(mine, given)
            call()
            self._compare(step, mine, wanted, turn)

    def _started(self, step: Step, ours: Any, both: Any, mine: Pair, frames: Any) -> None:
        call = self._arguments(step, ours, both, mine)
        if step["wait"] == "late":
            put(mine, frames[0][0])
            request = call()
            if step["salt"] % 2:
                sizes = [0 if mine[0] is None else len(mine[0].window)]
                mine = None, mine[1]
                del call
                self._litter(sizes)
            self._pending.append(Pending(self._at, step, request, mine, frames[0][1]))
            return
        if step["wait"] == "drop":
            put(mine, frames[0][0])
            for _ in range(step["repeat"]):
                call()
                self.calls[step["op"]] += 1
            sizes = [len(one.window) for one in mine if one is not None]
            del call, mine
            self._litter(sizes)
            return
        for turn in range(step["repeat"]):
            given, wanted = frames[turn % len(frames)]
            put(mine, given)
            finish(call(), step["wait"])
            self._compare(step, mine, wanted, turn)

    def _litter(self, sizes: list[int]) -> None:
        """Let memory go, and use again what the allocator then has."""
        gc.collect(1)
        for size in sizes:
            self._junk.extend(np.full(max(size, 1), 0xA5, np.uint8) for _ in range(2))

    def _check_junk(self) -> None:
        for one in self._junk:
            if (one != 0xA5).any():
                self._fail("wrong", "memory was written after it was given back")

    def _persistent(self, step: Step, ours: Any, both: Any, mine: Pair, frames: Any) -> None:
        operation = self._arguments(step, ours, both, mine)()
        for turn in range(step["repeat"]):
            given, wanted = frames[turn % len(frames)]
            put(mine, given)
            (operation.Start if step["wait"][0] == "W" else operation.start)()
            finish(operation, "Wait" if step["wait"] == "Waitall" else step["wait"])
            self._compare(step, mine, wanted, turn)
        if step["close"] != "drop":
            getattr(operation, step["close"])()

    def _finish(self, step: Step) -> None:
        """Wait for all that is under way."""
        pending, self._pending = self._pending, []
        if step["how"] == "backward":
            pending.reverse()
        if step["how"] == "Waitall" and pending:
            requests = [one.request for one in pending]
            self._guarded("Waitall", partial(MPI.Request.Waitall, requests))
        for one in pending:
            if step["how"] == "Waitall" or self._guarded("Wait", one.request.Wait):
                self._compare(one.step, one.sides, one.wanted, 0, one.number)

    def _compare(self, step: Step, sides: Pair, wanted: Any, turn: int, at: int = -1) -> None:
        """Compare every byte, guards among them."""
        self.calls[step["op"]] += 1
        for name, side, want in zip(("send", "recv"), sides, wanted, strict=True):
            if side is None or np.array_equal(side.window, want):
                continue
            plain = self._comms[step["comm"]][1]
            in_part = step["op"].startswith("reduce_scatter") and step["place"] and name == "recv"
            count = result_entries(step, plain.rank, plain.size) if in_part else None
            if is_equal_in_meaning(step, side, want, count):
                continue
            where = np.flatnonzero(side.window != want)
            detail = (
                f"{name} of {step['op']}{f' (step {at})' if at >= 0 else ''}, turn {turn}: bytes "
                f"{where[0]} to {where[-1]} of {len(want)} ({len(where)} differ, guards {GUARD}); "
                f"got {side.window[where[:8]].tolist()} for {want[where[:8]].tolist()}"
            )
            self._fail("wrong", detail)

    # Calls that are wrong on all ranks -----------------------------------------------------

    def _wrong(self, step: Step) -> None:
        """Make a call that every rank must refuse, without touching its memory."""
        ours, plain = self._comm(step["comm"])
        both = shapes(step, plain.rank, plain.size)
        mine = _sides(self._ours, step, both)
        given = self._filled(step, mine, both, step["salt"])
        changed = spoilt(step, mine, both)
        call = self._arguments(step, ours, both, changed)
        if step["wrong"] == "root":
            call = self._far_root(step, ours, changed)
        try:
            call()
        except REFUSALS:
            self.calls[f"wrong {step['wrong']}"] += 1
        else:
            self._fail("taken", f"{step['wrong']}: {step['op']} raised nothing")
            return
        for side, want in zip(mine, given, strict=True):
            if side is not None and want is not None and (side.window != want).any():
                self._fail("wrong", f"{step['wrong']}: {step['op']} raised, and wrote")

    def _far_root(self, step: Step, ours: Any, mine: Pair) -> Callable[[], Any]:
        """Name a root that is not there."""
        step = {**step, "named": True}
        specs = [None if side is None else side.spec for side in mine]
        given, named = arguments(step, ours.size, specs[0], specs[1], MPI.SUM)
        named["root"] = ours.size + step["root"]
        return lambda: getattr(ours, method_of(step))(*given, **named)

    _steps: ClassVar[dict[str, Callable[[Runner, Step], None]]] = {
        "call": _call, "threads": _threads, "signal": _signal, "finish": _finish, "free": _free,
        "wrong": _wrong,
    }  # fmt: skip


def _sides(pool: Pool, step: Step, both: Any) -> Pair:
    """Give the memory of both sides."""
    found = [
        pool.side(step[name], step["kind"], shape) if isinstance(shape, Part) else None
        for name, shape in zip(("send", "recv"), both, strict=True)
    ]
    return found[0], found[1]


def _plainer(step: Step) -> Step:
    """Give a call as odd ranks make it where forms differ between ranks."""
    made = {**step, "send": dict(step["send"]), "recv": dict(step["recv"])}
    for name in ("send", "recv"):
        made[name]["form"] = "typed" if KINDS[step["kind"]].mpi else "array"
        if KINDS[step["kind"]].is_derived or step["gap"] or not KINDS[step["kind"]].plain:
            made[name]["form"] = step[name]["form"]
    return made
