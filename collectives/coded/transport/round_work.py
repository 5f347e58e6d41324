"""What a rank computes in a round, and when it stops.

After every micro-batch it looks whether the round is decided: then the others
go on without the rest of its work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from closeranks.collectives.coded.schemes.work_sharing import next_micro_batch
from closeranks.collectives.coded.transport.gradient_layout import copied
from closeranks.collectives.coded.transport.round_memory import (
    ADDED,
    DONE,
    HELPS,
    HOLDS,
    STATE,
    TAKEN,
    WAITS,
)
from closeranks.comms.exit import forked_child

if TYPE_CHECKING:
    from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
    from closeranks.collectives.coded.schemes.task import CodedTask
    from closeranks.collectives.coded.transport.gradient_layout import Flats, GradientLayout
    from closeranks.collectives.coded.transport.round_memory import RoundMemory


class Batch:
    """The micro-batches of one job.

    Parameters
    ----------
    compute_part : callable
        Gives the gradient of a micro-batch.
    parts : sequence
        The micro-batches.
    code_parts : int
        Parts that the scheme knows; each is some micro-batches that follow
        each other.

    Attributes
    ----------
    seconds, computed
        Time spent in ``compute_part``, and how often it was called.
    """

    def __init__(
        self, compute_part: Callable[[Any], Any], parts: Sequence[Any], code_parts: int
    ) -> None:
        self._compute, self._parts, self._code_parts = compute_part, parts, code_parts
        self._kept: dict[int, Any] = {}
        self.seconds, self.computed = 0.0, 0

    def of_part(self, part: int) -> range:
        """Give the numbers of the micro-batches of a part."""
        count = len(self._parts)
        first, last = part * count // self._code_parts, (part + 1) * count // self._code_parts
        return range(first, last)

    def gradient(self, number: int) -> Any:
        """Compute the gradient of a micro-batch."""
        if number in self._kept:
            return self._kept.pop(number)
        began = time.perf_counter()
        found = self._compute(self._parts[number])
        forked_child.refuse_in_child("CodedAllreduce.step")  # its vectors are its parent's
        self.seconds += time.perf_counter() - began
        self.computed += 1
        return found

    def compute_ahead(self, number: int) -> Any:
        """Compute the gradient of a micro-batch, and keep a copy of it for its turn."""
        found = copied(self.gradient(number))
        self._kept[number] = found
        return found


def compute_tasks(
    tasks: Sequence[tuple[CodedTask, Batch, Flats]],
    layout: GradientLayout,
    is_over: Callable[[], bool],
) -> bool:
    """Compute the vectors of some tasks.

    Local.

    Parameters
    ----------
    tasks : sequence of (CodedTask, Batch, list of ndarray)
        Each with the micro-batches of its job, and where its vector goes.
    layout : GradientLayout
        Of the gradients.
    is_over : callable
        Whether the round is decided; asked after every micro-batch.

    Returns
    -------
    bool
        Whether all vectors are complete.
    """
    if is_over():
        return False
    for at, (task, batch, vector) in enumerate(tasks):
        is_first, units = True, list(_micro_batches(task, batch))
        for which, (number, coefficient) in enumerate(units):
            layout.add(vector, batch.gradient(number), coefficient, is_first=is_first)
            is_first = False
            is_last = at + 1 == len(tasks) and which + 1 == len(units)
            if not is_last and is_over():
                return False
    return True


def _micro_batches(task: CodedTask, batch: Batch) -> Iterator[tuple[int, float]]:
    """Give the micro-batches of a task, and their factors."""
    for part, coefficient in zip(task.parts, task.coefficients, strict=True):
        for number in batch.of_part(part):
            yield number, coefficient


class SharedWork:
    """The work of a rank in a group whose ranks help each other.

    A micro-batch is claimed by a bit of DONE before it is added, by one rank
    only.  ADDED counts what was added: the work of a node is complete when
    that is all.

    Parameters
    ----------
    memory : RoundMemory
        Of this node.
    scheme : PartialRepetition
        Its groups.
    worker : int
        This rank's number in the scheme.
    group : sequence of (int, int)
        Workers of its group on this node, and their numbers on it; helps only
        these.
    groups : sequence of sequence of int
        Ranks of this node, by their numbers on it, that help each other.
    """

    def __init__(
        self,
        memory: RoundMemory,
        scheme: PartialRepetition,
        worker: int,
        group: Sequence[tuple[int, int]],
        groups: Sequence[Sequence[int]],
    ) -> None:
        self._memory, self._words, self._micro = memory, memory.words, scheme.micro
        self._group, self._groups = list(group), groups
        self._members = sum(map(len, groups))
        self._me = [one for one, _ in group].index(worker)
        self._member = group[self._me][1]
        self._round = 0
        self._has_any = False
        self._scratch: Flats = []

    def begin(self, round_: int) -> None:
        """Begin a round.  Local."""
        self._round, self._has_any = round_, False

    def is_complete(self) -> bool:
        """Tell whether every micro-batch of this node's ranks was added.  Local."""
        whole = self._members * self._micro
        return self._words.load(self._memory.word(self._round, ADDED)) == whole

    def is_blocked(self, living: Collection[int]) -> bool:
        """Tell whether the work cannot become complete without ranks that died.

        Local.  A rank that dies between its claim and its addition takes a
        micro-batch with it.  A share is lost if nobody lives who may compute
        it.

        Parameters
        ----------
        living : collection of int
            Ranks of this node that live, by their numbers on it.
        """
        load, memory, round_ = self._words.load, self._memory, self._round
        every = (1 << self._micro) - 1
        helped = [
            one for group in self._groups if not set(group).isdisjoint(living) for one in group
        ]
        # In this order: who waits has added what it has claimed.
        if any(load(memory.rank_word(round_, one, DONE)) != every for one in helped):
            return False
        if any(load(memory.rank_word(round_, one, STATE)) != WAITS for one in living):
            return False
        return not self.is_complete()

    def holds(self, member: int) -> bool:
        """Tell whether a rank of this node has added anything.  Local."""
        return self._words.load(self._memory.rank_word(self._round, member, HOLDS)) != 0

    def has_own(self, member: int) -> bool:
        """Tell whether a rank has computed its own share without help.  Local."""
        at = self._memory.rank_word(self._round, member, TAKEN)
        return self._words.load(at) == 0

    def compute_own(
        self, batch: Batch, layout: GradientLayout, vector: Flats, is_over: Callable[[], bool]
    ) -> bool:
        """Compute this rank's share, as far as no other rank has done so.

        Local.  Returns False if the round was decided before it came to the
        end.
        """
        while True:
            if is_over():
                return False
            chosen = next_micro_batch(self._me, *self._bits(), self._micro, helps=False)
            if chosen is None:
                return True
            self._compute(chosen, batch, layout, vector, is_over)

    def help(
        self, batch: Batch, layout: GradientLayout, vector: Flats, is_over: Callable[[], bool]
    ) -> None:
        """Compute micro-batches of the others, until none is left.  Local."""
        state = self._memory.rank_word(self._round, self._member, STATE)
        while not (is_over() or self.is_complete()):
            # Told before the last look: a rank that decides counts on ranks that wait.
            self._words.store(state, HELPS)
            if self.is_complete():
                break
            done, taken = self._bits()
            chosen = next_micro_batch(self._me, done, taken, self._micro, helps=True)
            if chosen is None:
                break
            member, number = chosen
            at = self._memory.rank_word(self._round, self._group[member][1], TAKEN)
            was_taken = self._words.set_bits(at, 1 << number) >> number & 1
            if was_taken and not taken[member] >> number & 1:
                continue  # another helper was faster
            self._compute(chosen, batch, layout, vector, is_over)
        self._words.store(state, WAITS)

    def _bits(self) -> tuple[list[int], list[int]]:
        """Read which micro-batches of the group are done, and which are taken."""
        load, memory = self._words.load, self._memory
        done, taken = (
            [load(memory.rank_word(self._round, member, which)) for _, member in self._group]
            for which in (DONE, TAKEN)
        )
        return done, taken

    def _compute(
        self,
        chosen: tuple[int, int],
        batch: Batch,
        layout: GradientLayout,
        vector: Flats,
        is_over: Callable[[], bool],
    ) -> None:
        """Compute a micro-batch of the scheme, claim it and add it."""
        owner, number = chosen
        worker, member = self._group[owner]
        units = batch.of_part(worker * self._micro + number)
        sums = None
        if len(units) == 1:
            gradient = batch.gradient(units[0])
        else:
            sums = self._sum(units, batch, layout, is_over)
            if sums is None:
                return
        at = self._memory.rank_word(self._round, member, DONE)
        if self._words.set_bits(at, 1 << number) >> number & 1:
            return  # another rank was faster
        if sums is None:
            layout.add(vector, gradient, 1.0, is_first=not self._has_any)
        else:
            for target, added in zip(vector, sums, strict=True):
                np.copyto(target, target + added if self._has_any else added)
        self._has_any = True
        self._words.store(self._memory.rank_word(self._round, self._member, HOLDS), 1)
        self._words.add(self._memory.word(self._round, ADDED), 1)

    def _sum(
        self, units: range, batch: Batch, layout: GradientLayout, is_over: Callable[[], bool]
    ) -> Flats | None:
        """Add the gradients of one micro-batch of the scheme, apart from the vector.

        Each is added before the next one is computed, which may be in the same
        array.  Gives None if the round was decided meanwhile.
        """
        if not self._scratch:
            self._scratch = layout.flats(np.empty(layout.nbytes, np.uint8))
        for which, unit in enumerate(units):
            if which and is_over():
                return None
            layout.add(self._scratch, batch.gradient(unit), 1.0, is_first=which == 0)
        return self._scratch
