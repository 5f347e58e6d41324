"""Every order of the word operations of some ranks of a node, by the package's own code.

A state of the node is the memory, and what each rank knows, see `rank_code`.  From a
state follow those after an operation of any rank, and after the death of any.

Left out are orders that make no difference: an operation on what no other rank reads
or writes from here on is done at once.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np

from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.transport.round_memory import (
    ADDED,
    COMPUTES,
    DECIDED,
    DONE,
    HELPS,
    HOLDS,
    LEFT,
    MOVED,
    OPEN,
    PLACED,
    STATE,
    TAKEN,
)
from tests.collectives.coded.transport.rank_code import (
    DEATHS,
    DIED,
    LIMIT,
    LOOK,
    LOST,
    RANK_WORDS,
    WORDS,
    Chosen,
    Local,
    Rank,
)


class Wrong(AssertionError):
    """An order in which something goes wrong."""


class Found(NamedTuple):
    """What was found: numbers of states and orders, and how ranks end."""

    states: int
    steps: int
    ends: frozenset[tuple[str, ...]]


class Node:
    """All orders of the operations of the ranks of a node.

    Parameters
    ----------
    scheme : PartialRepetition
        The scheme.
    rounds, slots : int
        How many rounds they run, and slots of the memory.
    deaths : int
        How many ranks die at most, each between any two operations.
    is_loose : bool
        Whether ranks choose any micro-batch that is not done, as no rank would always:
        more orders, but fewer states, since nobody remembers what it has read.
    """

    def __init__(
        self,
        scheme: PartialRepetition,
        *,
        rounds: int = 1,
        slots: int = 2,
        deaths: int = 0,
        is_loose: bool = False,
    ) -> None:
        self._n, self._parts, self._rounds, self._deaths = scheme.n, scheme.parts, rounds, deaths
        self._micro = scheme.micro
        self._ranks = [Rank(scheme, rank, slots, is_loose=is_loose) for rank in range(self._n)]
        names: list[Any] = []
        for slot in range(slots):
            names += [(slot, w, -1) for w in WORDS]
            names += [(slot, w, m) for w in RANK_WORDS for m in range(self._n)]
            names += [(slot, index) for index in range(self._n)]  # records
        names += [("vector", rank) for rank in range(self._n)]  # round of what is in it
        names += [("added", slot) for slot in range(slots)]  # bits of all micro-batches
        self._groups = scheme.groups
        self._place = {name: at for at, name in enumerate(names)}
        self._locals: list[Any] = []
        self._number: dict[Any, int] = {}
        self._pending: dict[tuple[int, int], Any] = {}
        self._following: dict[tuple[int, int, Any], int] = {}
        start: list[Any] = [0] * len(names)
        for slot in range(slots):
            for index in range(self._n):
                start[self._place[slot, index]] = bytes(self._n)
        for round_ in range(1, slots + 1):
            start[self._place[round_ % slots, OPEN, -1]] = round_
        self._size = len(names)
        begin = self._numbered(Local(1))
        self.start = (*start, *[self._settled(rank, begin) for rank in range(self._n)])

    def _numbered(self, local: Any) -> int:
        found = self._number.get(local)
        if found is None:
            found = self._number[local] = len(self._locals)
            self._locals.append(local)
        return found

    def _settled(self, rank: int, number: int) -> int:
        """Cut a local state, and find the operation that follows."""
        local = self._locals[number]
        if isinstance(local, str):
            return number
        whole, (local, operation) = local, self._ranks[rank].run(local, self._rounds)
        number = self._numbered(local)
        if not isinstance(local, str):  # what was cut leads to the same place
            again = self._ranks[rank].run(local, self._rounds)
            assert again == (local, operation), (whole, local, operation, again)
        self._pending[rank, number] = operation
        return number

    def _go_on(self, rank: int, number: int, result: Any) -> int:
        """Give the local state after an operation has given a result."""
        key = rank, number, result
        found = self._following.get(key)
        if found is None:
            local = self._locals[number]
            more = local._replace(history=(*local.history, result))
            found = self._following[key] = self._settled(rank, self._numbered(more))
        return found

    def explore(self, most: int = 10**9) -> Found:
        """Go through all orders; raises `Wrong` for one that goes wrong.

        In the end every state must lead to one in which no rank waits any more.
        """
        numbers, states, sources, targets = {self.start: 0}, [self.start], array("q"), array("q")
        ends, finals, at = set(), array("q"), 0
        while at < len(states):
            state = states[at]
            following = self._successors(state)
            if not following:
                finals.append(at)
                ends.add(tuple(str(self._locals[one]) for one in state[self._size :]))
            for one in following:
                number = numbers.get(one)
                if number is None:
                    number = numbers[one] = len(states)
                    states.append(one)
                    assert number < most, "too many states"
                sources.append(at)
                targets.append(number)
            at += 1
        stuck = _unreached(len(states), np.array(sources), np.array(targets), np.array(finals))
        if stuck is not None:
            raise Wrong("ranks wait for ever", self.told(states[stuck]))
        return Found(len(states), len(sources), frozenset(ends))

    def told(self, state: tuple[Any, ...]) -> dict[str, Any]:
        """Write a state for people."""
        words = {str(name): state[at] for name, at in self._place.items() if state[at]}
        return words | {"ranks": [self._locals[one] for one in state[self._size :]]}

    def _successors(self, state: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Give the states that may follow."""
        ranks = state[self._size :]
        living = [r for r in range(self._n) if not isinstance(self._locals[ranks[r]], str)]
        for rank in living:
            if self._is_alone(state, rank, self._pending[rank, ranks[rank]]):
                return self._steps(state, rank)
        found = [one for rank in living for one in self._steps(state, rank)]
        if sum(self._locals[one] == DIED for one in ranks) < self._deaths:
            died = self._numbered(DIED)
            found += [self._with(state, rank, died) for rank in living]
        return found

    def _with(self, state: tuple[Any, ...], rank: int, local: int) -> tuple[Any, ...]:
        at = self._size + rank
        return (*state[:at], local, *state[at + 1 :])

    def _is_alone(self, state: tuple[Any, ...], rank: int, operation: Any) -> bool:
        """Tell whether no other rank's operations have to do with this one."""
        kind, name, given = operation[0], operation[1], operation[2:]
        round_ = self._locals[state[self._size + rank]].round
        slot = round_ % self._ranks[rank].slots
        # Nobody looks at vectors, or who holds some, before all that was added is counted.
        added = state[self._place["added", slot]].bit_count() - state[self._place[slot, ADDED, -1]]
        if kind in {"record", "read", "write", "sum"}:
            return added >= 0 if kind == "write" else kind != "sum" or self._rounds == 1
        is_decided = bool(state[self._place[slot, DECIDED, -1]])
        if kind in {"wait", "pick"}:
            return is_decided and name in {"decision", ("any",)}
        which, member = name[1], name[2] if len(name) == 3 else -1
        if kind == "load":
            value = state[self._place[name]]
            return is_decided if member >= 0 and which in {STATE, HOLDS} else value == {
                (OPEN, False): round_, (ADDED, False): self._parts,
                (DECIDED, False): value or None, (DONE, True): (1 << self._micro) - 1,
            }.get((which, member >= 0))  # fmt: skip
        if kind == "store" and member >= 0:  # nobody looks any more who waits, but at the dead
            is_placed = which == STATE and given[0] == PLACED
            is_uncounted = which == HOLDS and added > 0
            return is_uncounted or (is_decided and not (is_placed and self._deaths))
        if kind == "add" and which == MOVED:  # all wait for the last one
            return not self._deaths
        return kind == "swap_if" and is_decided

    def _steps(self, state: tuple[Any, ...], rank: int) -> list[tuple[Any, ...]]:
        """Let a rank do its operation; some have several results."""
        number: int = state[self._size + rank]
        operation: tuple[Any, ...] = self._pending[rank, number]
        kind, name, given = operation[0], operation[1], list(operation[2:])
        if kind in {"wait", "pick"}:
            told: list[Any] = (
                self._waited(state, *given) if kind == "wait" else self._picked(state, rank, *given)
            )
            return [self._with(state, rank, self._go_on(rank, number, one)) for one in told]
        cells = list(state)
        result = self._done(cells, rank, kind, name, given)
        after = cells[self._size + rank] = self._go_on(rank, number, result)
        if self._locals[after] == LOST:
            self._check_lost(state, rank)
        return [tuple(cells)]

    def _check_lost(self, state: tuple[Any, ...], rank: int) -> None:
        """See that a rank that gives up could not have gone on."""
        locals_ = [self._locals[one] for one in state[self._size :]]
        round_ = locals_[rank].round
        slot, dead = (
            round_ % self._ranks[rank].slots,
            [r for r, x in enumerate(locals_) if x == DIED],
        )
        word = {one: state[self._place[slot, one, -1]] for one in WORDS}
        if word[OPEN] != round_:
            return  # it waits for the one that died to leave an earlier round
        if word[DECIDED]:
            counted = state[self._place[slot, word[DECIDED] - 1]]
            is_right = any(counted[r] for r in dead) and word[MOVED] < sum(counted)
        else:
            done = [state[self._place[slot, DONE, r]] for r in range(self._n)]
            left = [r for r, bits in enumerate(done) if bits != (1 << self._micro) - 1]
            helped = [g for g in self._groups if not set(g) <= set(dead)]
            living = [x for x in locals_ if not isinstance(x, str)]
            is_right = word[ADDED] < self._parts and not any(r in g for g in helped for r in left)
            is_right = is_right and not any(_computes(x, round_) for x in living)
        if not is_right:
            raise Wrong(f"rank {rank} gives up for nothing", self.told(state))

    def _waited(self, state: tuple[Any, ...], has_limit: bool) -> list[tuple[int, frozenset[int]]]:
        """Give what may come of a wait: a look, its end, and a look at who has died."""
        dead = frozenset(r for r in range(self._n) if self._locals[state[self._size + r]] == DIED)
        found = [(LOOK, dead)] + ([(LIMIT, dead)] if has_limit else [])
        return found + ([(DEATHS, dead)] if dead else [])

    def _picked(
        self, state: tuple[Any, ...], rank: int, helps: bool
    ) -> list[tuple[int, int] | None]:
        """Give the micro-batches that a rank may choose."""
        slot = self._locals[state[self._size + rank]].round % self._ranks[rank].slots
        group = next(group for group in self._groups if rank in group)
        found: list[tuple[int, int] | None] = [
            (group.index(one), number)
            for one in (group if helps else (rank,))
            for number in range(self._ranks[rank].micro)
            if not state[self._place[slot, DONE, one]] >> number & 1
        ]
        return found or [None]

    def _done(self, cells: list[Any], rank: int, kind: str, name: Any, given: list[Any]) -> Any:
        """Do an operation; gives its result."""
        round_ = self._locals[cells[self._size + rank]].round
        if kind == "write":
            return self._write(cells, rank, name, *given)
        if kind == "sum":
            return self._check_sum(cells, *given)
        slot = name[0] if kind != "fill" else name[1]
        opened, at = cells[self._place[slot, OPEN, -1]], self._place.get(name, -1)
        if name[1:] != (OPEN, -1) and opened != round_:
            raise Wrong(f"rank {rank} of round {round_} is in the slot of round {opened}")
        if kind == "fill":
            if cells[self._place[slot, LEFT, -1]] != self._n:
                raise Wrong("a slot is cleared that a rank has not left")
            for one, place in self._place.items():
                if one[0] == slot and one[1:] != (OPEN, -1):
                    cells[place] = bytes(self._n) if len(one) == 2 else 0
            cells[self._place["added", slot]] = 0
            return 0
        decided = cells[self._place[slot, DECIDED, -1]]
        if kind == "record":
            if not decided:  # else nobody reads it
                cells[at] = given[0]
            return 0
        before = cells[at]
        if kind == "store" or (kind == "swap_if" and before == given[0]):
            cells[at] = given[-1]
        elif kind == "add":
            cells[at] += given[0]
        elif kind == "set_bits":
            cells[at] |= given[0]
        if name[1:] == (DECIDED, -1) and cells[at] != before:
            self._check_decision(cells, before, slot, round_)
            self._simplify(cells, slot, round_)
        return self._seen(kind, name, before)

    def _seen(self, kind: str, name: Any, value: Any) -> Any:
        """Give what makes a difference of what an operation gives."""
        if kind == "store" or (kind == "add" and name[1] != LEFT):
            return 0
        if kind == "set_bits" and name[1] == TAKEN:
            return value
        if kind == "load" and name[1:] == (ADDED, -1):
            return value if value == self._parts else 0
        if kind == "load" and name[2] >= 0 and name[1] == STATE and value == HELPS:
            return COMPUTES
        return value

    def _simplify(self, cells: list[Any], slot: int, round_: int) -> None:
        """Forget who has decided and who holds what, once that was looked at.

        It makes no difference: all ranks take the same record and the same vectors.
        """
        at = self._place[slot, DECIDED, -1]
        counted, cells[at] = cells[self._place[slot, cells[at] - 1]], 1
        for rank in range(self._n):
            cells[self._place[slot, rank]] = bytes(self._n) if rank else counted
            cells[self._place[slot, HOLDS, rank]] = 1
            cells[self._place["vector", rank]] = round_

    def _write(
        self, cells: list[Any], rank: int, name: Any, round_: int, unit: int, is_first: bool
    ) -> int:
        """Add a micro-batch to a vector."""
        if cells[self._place[round_ % self._ranks[0].slots, DECIDED, -1]]:
            raise Wrong(f"rank {rank} adds micro-batch {unit} after the round is over")
        at, added = self._place[name], self._place["added", round_ % self._ranks[0].slots]
        if cells[added] >> unit & 1:
            raise Wrong(f"rank {rank} adds micro-batch {unit} twice")
        if is_first != (cells[at] != round_):
            raise Wrong(f"rank {rank} loses what it has added")
        cells[at] = round_
        cells[added] |= 1 << unit
        return 0

    def _check_decision(self, cells: list[Any], before: int, slot: int, round_: int) -> None:
        """See that there is one decision, that all is there, and who owns parts of the sum."""
        if before:
            raise Wrong("a round is decided twice")
        ranks = range(self._n)
        holding = [r for r in ranks if cells[self._place[slot, HOLDS, r]]]
        self._check_sum(cells, round_, tuple(holding))
        decided = cells[self._place[slot, DECIDED, -1]] - 1
        owners = np.flatnonzero(np.frombuffer(cells[self._place[slot, decided]], np.uint8))
        for owner in owners.tolist():
            local = self._locals[cells[self._size + owner]]
            if not isinstance(local, str) and _computes(local, round_):
                raise Wrong(f"rank {owner} owns a part of the sum while it computes")

    def _check_sum(self, cells: list[Any], round_: int, ranks: tuple[int, ...]) -> int:
        """See that vectors hold every micro-batch of a round once."""
        there = tuple(r for r in range(self._n) if cells[self._place["vector", r]] == round_)
        added = cells[self._place["added", round_ % self._ranks[0].slots]]
        if there != ranks or added != (1 << self._parts) - 1:
            raise Wrong(f"round {round_} sums {added:b} of ranks {ranks}; there are {there}")
        return 0


def _computes(local: Local, round_: int) -> bool:
    """Tell whether a rank has a micro-batch of a round in its hands, or has not begun."""
    if local.round != round_:
        return local.round < round_
    return any(isinstance(one, Chosen) and one.chosen is not None for one in local.history)


def _unreached(count: int, sources: Any, targets: Any, finals: Any) -> int | None:
    """Give a state from which no final one is reached, or None."""
    order = np.argsort(targets, kind="stable")
    sources, starts = sources[order], np.searchsorted(targets[order], np.arange(count + 1))
    reached = np.zeros(count, bool)
    reached[finals] = True
    left = finals
    while left.size:
        spans = [sources[starts[one] : starts[one + 1]] for one in left.tolist()]
        found = np.unique(np.concatenate(spans)) if spans else left[:0]
        left = found[~reached[found]]
        reached[left] = True
    missing = np.flatnonzero(~reached)
    return int(missing[0]) if missing.size else None
