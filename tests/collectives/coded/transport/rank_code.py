"""One rank's part of a round, by the package's own code, one word operation after the other.

A rank runs `CodedAllreduce._run_round` on memory whose operations are decided from
outside.  What it has been told so far is its history: it is run again with that, up to
its next operation.  A history is cut where the code forgets: after a look in vain, at
the head of a loop, and where a decision leaves only one way to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.schemes.work_sharing import next_micro_batch
from closeranks.collectives.coded.transport import round_memory, round_work
from closeranks.collectives.coded.transport.coded_allreduce import CodedAllreduce
from closeranks.collectives.coded.transport.gradient_exchange import GradientExchange
from closeranks.collectives.coded.transport.round_decision import RoundDecision
from closeranks.collectives.coded.transport.round_memory import (
    ADDED,
    DECIDED,
    DONE,
    HOLDS,
    LEFT,
    MOVED,
    OPEN,
    STATE,
    TAKEN,
    WAITS,
    RoundMemory,
)
from closeranks.collectives.coded.transport.round_work import Batch, SharedWork

#: What comes of a wait: a look, the end of the wait, or a look at who has died.
LOOK, LIMIT, DEATHS = range(3)
#: Stand in a history for the end of a wait; numbers are what operations gave.
READY, NOT_READY = ("ready",), ("not ready",)
#: Stands for all that was read before a rank wrote whom it counts.
RECORDED = "recorded"
#: Local states of ranks that do nothing any more.
ENDED, DIED, LOST = "ended", "died", "lost"
WORDS = (OPEN, DECIDED, MOVED, ADDED, LEFT)
RANK_WORDS = (STATE, DONE, TAKEN, HOLDS)


class Pending(BaseException):
    """The next operation of a rank."""


class Lost(BaseException):
    """A rank gives up, since ranks that it needs have died."""


class Local(NamedTuple):
    """What a rank knows: its round, ranks that it knows to be dead, and its history."""

    round: int
    dead: frozenset[int] = frozenset()
    history: tuple[Any, ...] = ()


class Chosen(NamedTuple):
    """A micro-batch that a rank has chosen, and whether a helper had taken it."""

    chosen: tuple[int, int] | None
    member: int
    taken: int


#: Histories that lead a rank to where it knows that the round is decided, to where it stops
#: to help, and to where it waits: what it has done before does not matter there.
DECIDED_THERE = ("has none", 1)
HELP_ENDS = ("has none", Chosen(None, -2, 0), 0, *NOT_READY, "has none", 1)
HAS_ENDED = ("has none", Chosen(None, -2, 0), 0, *READY, 0)


class Words:
    """Words whose operations are decided from outside."""

    def __init__(self, ask: Callable[..., Any], memory: Callable[[int], object]) -> None:
        self._ask, self._name = ask, memory

    def _one(self, kind: str, at: int, *given: int) -> int:
        name = self._name(at)
        return 0 if name is None else self._ask(kind, name, *given)

    def load(self, at: int) -> int:
        """Read one."""
        return self._one("load", at)

    def store(self, at: int, value: int) -> int:
        """Write one."""
        return self._one("store", at, value)

    def swap_if(self, at: int, expected: int, value: int) -> int:
        """Write one if the expected value stands there."""
        return self._one("swap_if", at, expected, value)

    def add(self, at: int, value: int) -> int:
        """Add to one."""
        return self._one("add", at, value)

    def set_bits(self, at: int, bits: int) -> int:
        """Set bits of one."""
        return self._one("set_bits", at, bits)


class Record:
    """Flags in the memory."""

    def __init__(
        self, ask: Callable[..., Any], name: tuple[Any, ...], size: int, written: Callable[[], None]
    ) -> None:
        self._ask, self._name, self._size, self._written = ask, name, size, written

    def __setitem__(self, _: object, flags: Any) -> None:
        self._ask("record", self._name, bytes(flags))
        self._written()

    def __array__(self, *_: object, **__: object) -> Any:
        found = self._ask("read", self._name)
        return np.frombuffer(found or bytes(self._size), np.uint8)


class Filled:
    """The bytes of the memory, which `RoundMemory.clear` sets to 0."""

    def __init__(self, ask: Callable[..., Any], slot_of: Callable[[int], int]) -> None:
        self._ask, self._slot_of = ask, slot_of

    def __setitem__(self, where: slice, _: int) -> None:
        self._ask("fill", ("slot", self._slot_of(where.start)))


class Rank:
    """One rank: its code, run up to its next operation.

    Parameters
    ----------
    scheme : PartialRepetition
        The scheme.
    rank : int
        Which one.
    slots : int
        Slots of the memory.
    """

    def __init__(
        self, scheme: PartialRepetition, rank: int, slots: int, *, is_loose: bool = False
    ) -> None:
        self._is_loose = is_loose
        self._scheme, self._rank, self._slots = scheme, rank, slots
        self.micro, self.slots = scheme.micro, slots
        self._local, self._at, self._head = Local(1), 0, 0
        self._is_own = self._is_help = False
        self._start = 0
        #: What a rank reads that may decide.
        self._enough = {(ADDED, -1): scheme.parts, (STATE, rank): WAITS}
        self._made = self._make()

    def _make(self) -> Any:
        n, cells = self._scheme.n, [tuple(range(self._scheme.n))]
        coded: Any = CodedAllreduce.__new__(CodedAllreduce)

        class Node:
            rank = -1
            Barrier = staticmethod(lambda: None)

        class File:
            array = np.zeros(1 << 16, np.uint8)

        with (
            patch.object(round_memory, "share", lambda *_: File),
            patch.object(round_memory, "NodeWords", lambda: Words(self._ask, self._name)),
        ):
            memory: Any = RoundMemory(Node, cells, 0, self._slots)  # type: ignore[arg-type]
        self._names = {
            **{memory.word(r, w): (r % self._slots, w, -1)
               for r in range(1, self._slots + 1) for w in WORDS},
            **{memory.rank_word(r, m, w): (r % self._slots, w, m)
               for r in range(1, self._slots + 1) for m in range(n) for w in RANK_WORDS},
        }  # fmt: skip
        memory.record = lambda r, index: Record(
            self._ask, (r % self._slots, index), n, self._recorded
        )
        starts = {memory._slot(r) + (round_memory.LOCK + 1) * 128: r % self._slots
                  for r in range(1, self._slots + 1)}  # fmt: skip
        memory._bytes = Filled(self._ask, lambda start: starts[start])
        coded._memory, coded._comm, coded._cells, coded._mine = memory, self, cells, 0
        coded._rank = coded._member = coded._worker = self._rank
        coded._rank_of, coded.scheme = list(range(n)), self._scheme
        coded._record = coded._auto = coded._messages = None
        coded._wait, coded._ahead = self, self._slots - 1
        coded._vectors = coded.layout = self
        coded._base, coded._jobs, coded._late = 0, {}, np.zeros(n, np.int64)
        coded._waits, coded._waited_s = 0, 0.0
        coded._decision = RoundDecision(
            memory, None, cells, 0, self._rank,  # type: ignore[arg-type]
            may_end=coded._may_end, is_complete=coded._is_complete,
            dead=lambda: self._local.dead,
        )  # fmt: skip
        coded._exchange = GradientExchange(memory, None, cells, 0, self._rank)  # type: ignore[arg-type]
        coded._exchange._sum = lambda _, __, ___, terms, ____: self._ask(
            "sum", ("vectors",), coded.round + 1, tuple(term.rank for term in terms)
        )
        group = [
            (worker, worker) for worker in self._scheme.groups[self._scheme.group_of(self._rank)]
        ]
        coded._shared = SharedWork(memory, self._scheme, self._rank, group, self._scheme.groups)
        for loop in ("compute_own", "help"):
            setattr(coded._shared, loop, self._begins(loop, getattr(coded._shared, loop)))
        self._leave_out(coded)
        if self._is_loose:
            coded._shared._bits = lambda: ([0] * len(group), [0] * len(group))
        return coded

    def _leave_out(self, coded: Any) -> None:
        """Let it forget what it does not use any more, and not read what it does not use."""
        decision = coded._decision
        real = {name: getattr(decision, name)
                for name in ("try_to_end", "_is_complete", "_waiting", "ranks")}  # fmt: skip
        waits, store = coded._wait_for_decision, coded._memory.words.store
        complete: list[bool] = []

        def try_to_end() -> Any:
            complete.clear()
            return real["try_to_end"]()

        def is_complete() -> Any:
            complete.append(real["_is_complete"]())
            return complete[-1]

        def waiting() -> Any:  # of use only if all is there
            is_vain = complete == [False]
            return np.zeros(self._scheme.n, np.uint8) if is_vain else real["_waiting"]()

        def ranks() -> Any:
            self._cut_to(DECIDED_THERE)
            return real["ranks"]()

        def stored(at: int, value: int) -> int:
            if self._is_help and value == WAITS and self._names[at][1:] == (STATE, self._rank):
                self._cut_to(HELP_ENDS)
            return int(store(at, value))

        def wait_for_decision() -> None:
            self._cut_to(HAS_ENDED)
            waits()

        decision.try_to_end, decision._is_complete = try_to_end, is_complete
        decision._waiting, decision.ranks = waiting, ranks
        coded._wait_for_decision = wait_for_decision
        coded._memory.words.store = stored
        coded._deliver = lambda *_: None  # counts who was late

    def _recorded(self) -> None:
        """Forget the look that led a rank to write whom it counts."""
        if self._at == len(self._local.history):
            self._cut(self._start, RECORDED)
            self._at = self._start + 1

    def _cut_to(self, history: tuple[Any, ...]) -> None:
        """Take another history that leads to this place, if the own one ends here."""
        if self._at == len(self._local.history):
            self._local = self._local._replace(history=(self._local.round, *history))
            self._at = len(history) + 1

    # What the package's code calls -------------------------------------------------

    def Get_size(self) -> int:
        """Be the communicator: how many ranks."""
        return self._scheme.n

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Be `RoundWait`."""
        yield

    def look(self) -> None:
        """Be `RoundWait`, at the head of a loop: what came before it is forgotten."""
        shared = self._made._shared
        if self._at < len(self._local.history):
            shared._has_any = self._local.history[self._at] == "has some"
        else:
            self._cut(self._head, "has some" if shared._has_any else "has none")
        self._at += 1

    def until(
        self,
        ready: Callable[[], bool],
        blocks: Callable[[frozenset[int]], bool],
        *,
        limit_s: float | None = None,
        late: object = None,
    ) -> bool:
        """Be `RoundWait`: a look in vain is forgotten."""
        what = "moved" if late is None else "open"
        if ready == self._made._decision.try_to_end:
            what = "decision"
        start = self._start = self._at
        told = self._local.history
        if told[start : start + 1] in (READY, NOT_READY):
            self._at = start + 1
            return told[start : start + 1] == READY
        while True:
            if told[start : start + 1] == (RECORDED,):
                ready()
                return self._forget(start, outcome=True)
            chosen, dead = self._ask("wait", what, limit_s is not None)
            if chosen == LIMIT:
                return self._forget(start, outcome=False)
            if chosen == LOOK and ready():
                return self._forget(start, outcome=True)
            if chosen == DEATHS:
                if dead != self._local.dead:
                    self._local = self._local._replace(dead=dead)
                if blocks(dead):
                    raise Lost
            self._cut(start)
            told = self._local.history

    def _forget(self, start: int, *, outcome: bool) -> bool:
        self._cut(start, *(READY if outcome else NOT_READY))
        self._at = start + 1
        return outcome

    def own(self, _: int) -> list[Any]:
        """Be the vectors."""
        return [None]

    def of(self, *_: int) -> Any:
        """Be the vectors."""
        return []

    def result(self, _: int) -> Any:
        """Be the vectors."""
        return []

    @property
    def layout(self) -> Any:
        """Be the layout, too."""
        return self

    def shard(self, *_: object) -> list[Any]:
        """Be the layout."""
        return []

    def unpack(self, _: object) -> None:
        """Be the layout."""

    def add(self, _: object, unit: int, __: float, *, is_first: bool) -> None:
        """Be the layout."""
        self._ask("write", ("vector", self._rank), self._local.round, unit, is_first)

    # How it is run -----------------------------------------------------------------

    def _name(self, address: int) -> object:
        return self._names.get(address)

    def _ask(self, *operation: Any) -> Any:
        """Give what an operation has given; stop at the first one that was not done."""
        if (
            self._is_loose
            and len(operation[1]) == 3
            and operation[1][1] == TAKEN
            and operation[1][2] >= 0
        ):
            return 0
        if self._is_own and operation[0] == "load" and operation[1][2] not in (-1, self._rank):
            return 0  # who computes its own share looks at nothing else
        history = self._local.history
        if self._at == len(history):
            raise Pending(operation)
        found = history[self._at]
        if isinstance(found, Chosen):  # of what was read before, this is left
            return found.taken if operation[1][1:] == (TAKEN, found.member) else 0
        if found == RECORDED and operation[0] == "load":
            return self._enough.get(operation[1][1:], 0)
        self._at += 1
        return found

    def _cut(self, start: int, *more: Any) -> None:
        self._local = self._local._replace(history=(*self._local.history[:start], *more))
        self._at = min(self._at, start)

    def _choose(
        self, member: int, done: list[int], taken: list[int], micro: int, *, helps: bool
    ) -> tuple[int, int] | None:
        """Choose a micro-batch: what was read for it is forgotten."""
        history = self._local.history
        if self._at < len(history) and isinstance(history[self._at], Chosen):
            found: Chosen = history[self._at]
        else:
            if self._is_loose:
                chosen = self._ask("pick", ("any",), helps)
            else:
                chosen = next_micro_batch(member, done, taken, micro, helps=helps)
            found = Chosen(chosen, -2, 0)
            if chosen is not None:
                owner, number = chosen
                group = self._made._shared._group
                found = Chosen(chosen, group[owner][1], taken[owner] & 1 << number)
            self._cut(self._head + 1, found)
            self._at = self._head + 1
        self._at += 1
        return found.chosen

    def _begins(self, name: str, loop: Callable[..., Any]) -> Callable[..., Any]:
        """Note where the history of a loop begins."""

        def begun(*given: Any) -> Any:
            self._head = self._at
            self._is_own, self._is_help = name == "compute_own", name == "help"
            found = loop(*given)
            self._is_own = self._is_help = False
            return found

        return begun

    def run(self, local: Local, rounds: int) -> tuple[Any, Any]:
        """Run it; gives its local state, cut, and its next operation."""
        coded = self._made
        while True:
            self._local, self._at, self._head = local, 0, 0
            self._is_own = self._is_help = False
            coded.round = local.round - 1
            job = local.round
            batch = Batch(lambda part: part, range(self._scheme.parts), self._scheme.parts)
            coded._jobs, coded._last_job = {job: batch}, job
            try:
                with patch.object(round_work, "next_micro_batch", self._choose):
                    coded._run_round(local.round)
            except Pending as asked:
                return self._local, asked.args[0]
            except Lost:
                return LOST, None
            if coded.round == rounds:
                return ENDED, None
            local = Local(coded.round + 1, self._local.dead)
