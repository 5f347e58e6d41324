"""A program of random collectives that loses ranks.

    closeranks run --faults -n 4 [--spares 1] -- calls.py SEED

Each step makes some calls of any operation in an attempt: blocking or not, persistent
and kept over recoveries, in place, with gaps, on the world or what was split of it.
All is drawn from the seed, alike on all ranks.  What a rank passes follows from its
seat, so each rank knows what should come of a call from who is in it, and compares
every byte of its buffers, those around the result too, when the attempt is agreed;
after one that has failed, what was sent and what was in place has to be as it was.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Sequence
from functools import reduce
from random import Random
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import closeranks as cr

Array = NDArray[Any]
STEPS, RANKS, WATCHDOG_S = 12, 4, 50
#: Elements of a block; and bytes around a buffer.
SIZES, GUARD = (0, 1, 7, 100, 1000, 6000, 40_000), 64
TYPES = [np.dtype(one) for one in ("i1", "i4", "u8", "f4", "f8")]
OPS = {"SUM": np.add, "MIN": np.minimum, "MAX": np.maximum}
NAMES = (
    "Barrier", "Bcast", "Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter_block",
    "Reduce_scatter", "Allgather", "Allgatherv", "Gather", "Gatherv", "Scatter", "Scatterv",
    "Alltoall", "Alltoallv",
)  # fmt: skip
ROOTED = {"Bcast", "Reduce", "Gather", "Gatherv", "Scatter", "Scatterv"}
REDUCING = {"Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter_block", "Reduce_scatter"}
#: Those whose buffers are for any number of ranks; without a root recoveries leave them.
LASTING = {"Barrier", "Allreduce", "Scan", "Exscan"}


class Party(NamedTuple):
    """A communicator, and who has which rank in it."""

    comm: cr.Communicator
    seats: tuple[int, ...]


class Buffer:
    """Some elements, maybe every second one, between bytes that nobody is to touch."""

    def __init__(self, count: int, dtype: np.dtype[Any], *, gaps: bool) -> None:
        step = 1 + (gaps and count > 0)
        self.raw = np.full(2 * GUARD + count * step * dtype.itemsize, 0xA5, np.uint8)
        self.view: Array = self.raw[GUARD : self.raw.size - GUARD].view(dtype)[::step]

    def fill(self, start: int, data: Array) -> None:
        """Write a part, and expect that nothing changes."""
        self.view[start : start + len(data)] = data
        self.wanted = self.raw.copy()

    def expect(self, data: Array) -> None:
        """Expect this at the front."""
        now = self.raw.copy()
        self.view[: len(data)] = data
        self.wanted = self.raw.copy()
        self.raw[:] = now

    def check(self, words: object) -> None:
        """Compare every byte."""
        wrong = np.flatnonzero(self.raw != self.wanted)
        assert not len(wrong), f"{len(wrong)} of {self.raw.size} bytes, at {wrong[:4]}: {words}"


class Call:
    """A collective with its buffers.

    Parameters
    ----------
    draw : Random
        The same on all ranks.
    party : Party
        Who calls.
    seat : int
        This rank's.
    """

    def __init__(self, draw: Random, party: Party, seat: int) -> None:
        self.name, self.dtype = draw.choice(NAMES), draw.choice(TYPES)
        self.op, self.party, self.seat = draw.choice(list(OPS)), party, seat
        size, me = len(party.seats), party.seats.index(seat)
        self.root, most = draw.randrange(size), draw.choice(SIZES)
        self.in_place = draw.random() < 0.3 and self.name not in ("Exscan", "Bcast", "Alltoallv")
        self.in_place &= self.name not in ROOTED or me == self.root
        gaps = draw.random() < 0.2
        uneven = self.name.endswith("v") or self.name == "Reduce_scatter"
        #: Row: who sends; column: to whom.
        self.counts = np.full((size, size), most)
        if uneven:
            self.counts[:] = [[draw.randrange(most + 1) for _ in party.seats] for _ in party.seats]
        if not self.name.startswith("Alltoall"):
            self.counts[:] = self.counts[0]
        blocks = self.counts[0]
        whole, block = int(blocks.sum()), int(blocks[me])
        given, taken = {
            "Reduce_scatter_block": (whole, block), "Reduce_scatter": (whole, block),
            "Allgather": (block, whole), "Allgatherv": (block, whole),
            "Gather": (block, whole), "Gatherv": (block, whole),
            "Scatter": (whole, block), "Scatterv": (whole, block),
            "Alltoall": (whole, whole),
            "Alltoallv": (int(self.counts[me].sum()), int(self.counts[:, me].sum())),
        }.get(self.name, (most, most))  # fmt: skip
        if self.name == "Bcast" or (self.in_place and not self.name.startswith("Scatter")):
            given = taken = max(given, taken)
        self.source = Buffer(given, self.dtype, gaps=gaps)
        self.target = self.source
        if self.name != "Bcast" and not self.in_place:
            self.target = Buffer(taken, self.dtype, gaps=gaps)
        names = cr.collectives.algorithms(self.name.lower())
        self.algorithm = draw.choice(names) if draw.random() < 0.3 else "auto"
        self.begun: Array | None = None

    def __repr__(self) -> str:
        words = f"{self.name} {self.op} {self.dtype} {self.counts.tolist()} root {self.root}"
        return f"{words} {self.algorithm} in place {self.in_place} of {self.party.seats}"

    def fill(self, turn: Sequence[int]) -> None:
        """Write what this rank passes in a turn, and say what is to come of it."""
        seats, me = self.party.seats, self.party.seats.index(self.seat)
        blocks = self.counts[0]
        counts = {
            "Allgather": blocks, "Allgatherv": blocks, "Gather": blocks, "Gatherv": blocks,
            "Alltoall": self.counts.sum(1), "Alltoallv": self.counts.sum(1),
        }.get(self.name, np.full(len(seats), max(self.source.view.size, 0)))  # fmt: skip
        if self.name in ("Reduce_scatter", "Reduce_scatter_block", "Scatter", "Scatterv"):
            counts = np.full(len(seats), blocks.sum())
        given = [
            np.random.default_rng([*turn, seat]).integers(0, 30, count).astype(self.dtype)
            for seat, count in zip(seats, counts, strict=True)
        ]
        self.target.fill(0, np.full(self.target.view.size, 77, self.dtype))
        self.source.fill(0, np.full(self.source.view.size, 78, self.dtype))
        ends = blocks.cumsum()
        gathers = self.name.startswith(("Gather", "Allgather"))
        self.source.fill(ends[me] - blocks[me] if gathers and self.in_place else 0, given[me])
        self.begun = self.source.wanted if self.begun is None else self.begun
        self._expect(given, me, ends)

    def _expect(self, given: list[Array], me: int, ends: Array) -> None:
        """Say what is to come of what all ranks pass."""
        blocks = self.counts[0]
        mine = slice(ends[me] - blocks[me], ends[me])
        sums = given[: me + 1] if self.name == "Scan" else given
        if self.name in ROOTED - {"Bcast", "Scatter", "Scatterv"} and me != self.root:
            return
        if self.name == "Bcast":
            self.target.expect(given[self.root])
        elif self.name.startswith("Scatter"):
            if not self.in_place:
                self.target.expect(given[self.root][mine])
        elif self.name.startswith(("Allgather", "Gather")):
            self.target.expect(np.concatenate(given))
        elif self.name.startswith("Alltoall"):
            starts = self.counts[:, :me].sum(1)
            parts = zip(given, starts, self.counts[:, me], strict=True)
            self.target.expect(np.concatenate([one[s : s + n] for one, s, n in parts]))
        elif self.name == "Exscan":
            if me:
                self.target.expect(reduce(OPS[self.op], given[:me]))
        elif self.name in REDUCING:
            total: Array = reduce(OPS[self.op], sums)
            self.target.expect(total[mine] if "scatter" in self.name else total)

    def make(self, form: str) -> Any:
        """Call the method: "", "I" or "_init"."""
        name = f"I{self.name.lower()}" if form == "I" else self.name + form
        method = getattr(self.party.comm, name)
        if self.algorithm != "auto":
            try:
                return method(*self._arguments(), algorithm=self.algorithm)
            except cr.UsageError:  # which all meet, before anything is sent
                self.algorithm = "auto"
        return method(*self._arguments())

    def _arguments(self) -> tuple[Any, ...]:
        me = self.party.seats.index(self.seat)
        source: Any = MPI.IN_PLACE if self.in_place else self.source.view
        target: Any = self.target.view
        if self.name == "Barrier":
            return ()
        if self.name == "Bcast":
            return target, self.root
        if self.name.startswith("Scatter"):
            source = self.source.view if self.name == "Scatter" else [source, self.counts[0]]
            if self.name == "Scatterv":
                source = [self.source.view, self.counts[0]]
            target = MPI.IN_PLACE if self.in_place else target
            return source if me == self.root else None, target, self.root
        if self.name == "Alltoallv":
            return [source, self.counts[me]], [target, self.counts[:, me]]
        if self.name in ("Allgatherv", "Gatherv"):
            target = [target, self.counts[0]]
        more = (self.counts[0].tolist(),) if self.name == "Reduce_scatter" else ()
        more += (getattr(MPI, self.op),) if self.name in REDUCING else ()
        return source, target, *more, *((self.root,) if self.name in ROOTED else ())

    def lasts(self, comm: cr.Communicator) -> bool:
        """Tell whether any number of ranks of ``comm`` can start it again."""
        return self.name in LASTING and self.algorithm == "auto" and self.party.comm is comm

    def check(self) -> None:
        """Compare what has come, once all have agreed that it has."""
        if self.in_place and self.name.startswith("Reduce_scatter"):
            front = int(self.counts[0][self.party.seats.index(self.seat)])
            tail = self.target.view[front:].copy()  # may be anything
            self.target.expect(np.concatenate([self._front(front), tail]))
        for buffer in (self.source, self.target):
            buffer.check(self)

    def _front(self, count: int) -> Array:
        raw, self.target.raw[:] = self.target.raw.copy(), self.target.wanted
        front = self.target.view[:count].copy()
        self.target.raw[:] = raw
        return front

    def check_failed(self) -> None:
        """Compare what a failed attempt leaves alone, or puts back."""
        if self.begun is None:
            return  # it has not come to this one
        if self.in_place or self.target is not self.source:
            wanted = self.begun if self.in_place else self.source.wanted
            assert np.array_equal(self.source.raw, wanted), f"not as it was: {self}"
        ends = self.target.raw[:GUARD], self.target.raw[-GUARD:]
        assert all((end == 0xA5).all() for end in ends), f"beyond its buffer: {self}"


class Kept(NamedTuple):
    """A persistent operation that outlives its step."""

    call: Call
    operation: Any


class Program:
    """All that a rank does; `state` is what newcomers are told."""

    def __init__(self, comm: cr.Communicator, seed: int) -> None:
        self.comm, self.seed = comm, seed
        self.state: dict[str, Any] = {"step": 0, "sum": np.ones(500, np.uint64)}
        self.children: list[tuple[cr.Communicator, list[int]]] = []
        self.kept: list[Kept] = []
        self.came, self.met = 0, False

    def run(self) -> None:
        """Step until all is done."""
        while self.state["step"] < STEPS:
            calls: list[Call] = []
            for attempt in self.comm.attempts():
                for call in calls:
                    call.check_failed()
                calls, news = [], (list[Any](), list[Any]())
                with attempt:
                    self.step(calls, *news)
            for call in calls:
                call.check()
                call.begun = None
            self.children += news[0]
            self.kept += news[1]
            assert (self.state["sum"] == self.state["sum"][0] * np.ones(1, np.uint64)).all()
            self.state["step"] += 1

    def step(self, calls: list[Call], children: list[Any], kept: list[Any]) -> None:
        """Make the calls of a step; tells what is new."""
        comm = self.comm
        if "CLOSERANKS_SPARES" in os.environ:
            self.state = comm.synchronize(self.state)
            came = sum(map(comm.incarnation, comm.alive))
            if came != self.came:  # they have nothing of what was made before
                self.came, self.children, self.kept = came, [], []
        number = self.state["step"]
        draw = Random(f"{self.seed} {number}")
        self.die(Random(f"{self.seed} dies"), number)
        parties = [Party(comm, comm.alive), *map(self.party, self.children)]
        if draw.random() < 0.3:
            colors = [draw.randrange(2) for _ in range(RANKS)]
            children.append((comm.Split(colors[comm.seat], comm.rank), colors))
        for turn in range(4):
            one = Random(f"{self.seed} {number} {turn}")
            form, times = one.choice(["", "I", "_init"]), one.choice([1, 3])
            rounds = one.choice([1, 1, 4])
            made = [Call(Random(one.random()), one.choice(parties), comm.seat)
                    for _ in range(times)]  # fmt: skip
            calls += made
            if form == "_init":
                for call in made:
                    call.fill((self.seed, number, turn))  # to make it is a use, too
                fresh = [Kept(call, call.make(form)) for call in made]
                kept += [entry for entry in fresh if entry.call.lasts(comm)]
                for entry in self.kept if turn == 0 else []:
                    entry.call.party = parties[0]
                    calls.append(entry.call)
                    fresh.append(entry)
                self.rounds(fresh, rounds, (self.seed, number, turn))
            else:
                self.once(made, form, (self.seed, number, turn))
        comm.Allreduce(MPI.IN_PLACE, self.state["sum"])

    def party(self, child: tuple[cr.Communicator, list[int]]) -> Party:
        """Say who has which rank in what was split."""
        one, colors = child
        mine = colors[self.comm.seat]
        return Party(one, tuple(seat for seat in self.comm.alive if colors[seat] == mine))

    def once(self, calls: list[Call], form: str, turn: tuple[int, ...]) -> None:
        """Make calls, and wait for them in an order of this rank's own."""
        requests = []
        for number, call in enumerate(calls):
            call.fill((*turn, number))
            requests.append(call.make(form))
        if form:
            order = Random(self.comm.seat + sum(turn))
            order.shuffle(requests)
            if order.random() < 0.5:
                MPI.Request.Waitall(requests)
            for request in requests:
                request.wait()

    def rounds(self, entries: list[Kept], rounds: int, turn: tuple[int, ...]) -> None:
        """Start persistent operations together, several times."""
        for lap in range(rounds):
            for number, entry in enumerate(entries):
                entry.call.fill((*turn, number, lap))
                entry.operation.start()
            for entry in reversed(entries):
                entry.operation.wait()

    def die(self, draw: Random, step: int) -> None:
        """End one rank or two, in the middle of what comes next."""
        victims = draw.sample(range(RANKS), draw.choice([1, 2]))
        for victim in victims:
            when, after = draw.randrange(2, STEPS), draw.choice([1e-5, 5e-4, 2e-3, 1e-2])
            if (victim, when, False) == (self.comm.seat, step, self.comm.joined):
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, after)


def main() -> None:
    """Say who is left."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    replaces = "CLOSERANKS_SPARES" in os.environ
    with cr.init(on_failure="replace" if replaces else "shrink") as comm:
        Program(comm, int(sys.argv[1])).run()
        words = f"seat {comm.seat} of {list(comm.alive)}, epoch {comm.epoch}"
        comm.Barrier()
    print(words, flush=True)  # noqa: T201 - what the test reads


main()
