"""Sums of gradients on real ranks that do not wait for slow ones."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

from closeranks.collectives.coded.codes.gradient_code import GradientCode
from closeranks.collectives.coded.codes.group_code import GroupCode
from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.transport.auto_scheme import AutoScheme
from closeranks.collectives.coded.transport.cell_messages import FAILED, CellMessages
from closeranks.collectives.coded.transport.coded_agreement import (
    agree_on_arguments,
    agree_on_layout,
    described,
    order_of_workers,
)
from closeranks.collectives.coded.transport.gradient_exchange import GradientExchange, VectorTerm
from closeranks.collectives.coded.transport.gradient_layout import Flats, GradientLayout
from closeranks.collectives.coded.transport.one_call import OneCall
from closeranks.collectives.coded.transport.rank_meeting import RankMeeting
from closeranks.collectives.coded.transport.round_decision import RoundDecision
from closeranks.collectives.coded.transport.round_memory import (
    CLOSED,
    STATE,
    WAITS,
    RoundMemory,
)
from closeranks.collectives.coded.transport.round_wait import STEP, RoundWait
from closeranks.collectives.coded.transport.round_work import Batch, SharedWork, compute_tasks
from closeranks.collectives.coded.transport.step_parts import check_enough, read_parts
from closeranks.collectives.coded.transport.vector_memory import VectorMemory
from closeranks.comms import argument
from closeranks.comms.exit import forked_child
from closeranks.comms.exit.signal_handlers import DeferredHandlers
from closeranks.errors import CodeError, PeerError, Revoked, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from closeranks.collectives.coded.schemes.task import SumTerm
    from closeranks.collectives.coded.transport.recorder import Recorder
    from closeranks.collectives.communicator.communicator import Communicator

#: The default of ``max_noise`` is this share of the inverse of a rounding error.
_NOISE: Final = 0.01
_finfo: Any = ml_dtypes.finfo


class CodedAllreduce:
    """The sum of gradients over all ranks, as soon as enough ranks have theirs.

    Each rank computes the micro-batches that a scheme gives it.  Once the sum
    can be had from what is there, the round is decided.  Ranks that are late
    then give up the rest of their work, and get the same sum.

    Collective over ``comm`` to make and to close.

    Parameters
    ----------
    comm : Communicator
        The ranks; a communicator of closeranks.
    scheme : Scheme, GradientCode or "auto"
        Who computes what; ``n`` is the number of ranks.  "auto" measures
        first, and chooses with `tune`.
    ahead : int
        How many rounds a rank may be before another one.
    record : Recorder, optional
        Takes the seconds that this rank has computed in each round.
    max_noise : float, optional
        Sets of ranks whose `GradientCode.noise_gain` is larger do not count.
        Default: 0.01 divided by the rounding error of the gradients' type.

    Attributes
    ----------
    scheme : Scheme
        The scheme, with the state of the rounds that are over.
    round : int
        The round that this rank has ended last; 0 at first.

    Raises
    ------
    UsageError
        On all ranks, if the arguments of any rank cannot be used, or differ.
    Unavailable
        On all ranks, if a node has no memory to share.

    Notes
    -----
    Decide first, then move: before a round is decided, ranks tell each other
    only how far they are.  Then the ranks that are on time add the vectors, each
    a part of the sum.  `closeranks.collectives.coded.transport` says which file
    does what.

    In `attempts` a rank that dies is late until the next attempt, in which the
    first `step` begins anew with the members that are there.

    Examples
    --------
    >>> coded = CodedAllreduce(comm, PartialRepetition(8, 3))  # doctest: +SKIP
    >>> gradient = coded.step(compute_part, batches)  # doctest: +SKIP
    """

    def __init__(
        self,
        comm: Communicator,
        scheme: Scheme | GradientCode | str,
        *,
        ahead: int = 4,
        record: Recorder | None = None,
        max_noise: float | None = None,
    ) -> None:
        chosen = agree_on_arguments(comm, scheme, ahead, max_noise, record)
        self._comm, self._ahead, self._given_noise = comm, operator.index(ahead), max_noise
        self._record, self._is_closed = record, False
        self._chooses = isinstance(scheme, str)
        self._first = scheme if isinstance(scheme, str) else chosen
        self._call = OneCall("CodedAllreduce")
        self._open(chosen)

    def _open(self, chosen: Scheme) -> None:
        """Begin with the ranks that are there; collective."""
        comm, ahead = self._comm, self._ahead
        self._rank, self._max_noise = comm.Get_rank(), self._given_noise
        self._pristine, self.scheme = chosen, chosen.copy()
        self.round, self._base = 0, 0
        membership = comm.membership
        with membership.together("CodedAllreduce"):
            node = membership.world.node
            self._cells = sorted(set(comm.allgather(membership.world.node_ranks)))
            self._mine = next(i for i, some in enumerate(self._cells) if self._rank in some)
            here = self._cells[self._mine]
            self._member = here.index(self._rank)
            self._rank_of = order_of_workers(chosen, self._cells, membership.topology)
            self._worker = self._rank_of.index(self._rank)
            others = [rank for rank in range(comm.Get_size()) if rank not in here]
            self._memory = RoundMemory(node, self._cells, self._mine, ahead + 1)
            self._messages = CellMessages(comm, self._mine, others)
        self._node = node
        elsewhere = [cell for cell in range(len(self._cells)) if cell != self._mine]
        self._meeting = RankMeeting(self._memory, self._messages, self._member, elsewhere)
        self._wait = RoundWait(
            membership, self._memory, self._messages, self._handle, self._meeting
        )
        self._decision = RoundDecision(
            self._memory, self._messages, self._cells, self._mine, self._member,
            may_end=self._may_end, is_complete=self._is_complete,
            dead=lambda: self._wait.dead, wait_locked=self._wait.wait_locked,
        )  # fmt: skip
        self._exchange = GradientExchange(
            self._memory, self._messages, self._cells, self._mine, self._rank
        )
        self._vectors: VectorMemory | None = None
        self._jobs: dict[int, Batch] = {}
        self._last_job = 0
        self._shared = self._shared_work()
        self._auto = AutoScheme(comm) if self._chooses else None
        size = comm.Get_size()
        self._late = np.zeros(size, np.int64)
        self._waits, self._waited_s = 0, 0.0
        self._last_statistics: dict[str, Any] | None = None  # as long as it is open

    def _reopen(self) -> None:
        """Begin anew with the ranks that a recovery has left or brought; collective.

        Newcomers make a `CodedAllreduce` meanwhile: the ranks do the same calls.
        """
        self._release()
        self._record = None  # its file is for the ranks that were
        chosen = agree_on_arguments(
            self._comm, self._first, self._ahead, self._given_noise, None, anew=True
        )
        self._open(chosen)

    def _release(self) -> None:
        """Let go of memory and messages.  Local, harmless twice."""
        if self._last_statistics is None:
            self._last_statistics = self.statistics()
        self._messages.abandon()
        if self._vectors is not None:
            self._vectors.close()
        self._memory.close()

    def _shared_work(self) -> SharedWork | None:
        """Give the work in groups that help each other, if the scheme has it."""
        scheme = self.scheme
        if not isinstance(scheme, PartialRepetition):
            return None
        here = self._cells[self._mine]
        group = [
            (worker, here.index(self._rank_of[worker]))
            for worker in scheme.groups[scheme.group_of(self._worker)]
            if self._rank_of[worker] in here
        ]
        groups = [
            [here.index(self._rank_of[worker]) for worker in some if self._rank_of[worker] in here]
            for some in scheme.groups
        ]
        return SharedWork(self._memory, scheme, self._worker, group, groups)

    def step(self, compute_part: Callable[[Any], Any], parts: int | Sequence[Any]) -> Any:
        """Give the sum of the gradients of some micro-batches.

        Collective.

        Parameters
        ----------
        compute_part : callable
            Takes a micro-batch, and gives its gradient: an array of numbers,
            or a list of arrays, of the same shapes and types always.  What it
            gave may be changed once it is called again.  With a delay T it is
            called in the T steps that follow, too: it must not look at variables
            that a loop changes.
        parts : sequence or int
            The micro-batches, the same on all ranks; a number stands for
            ``range(parts)``.  At least ``scheme.parts``.

        Returns
        -------
        ndarray, list of ndarray, or None
            The sum, in new arrays, with the same bits on all ranks.  A scheme
            with a delay T gives the sum of T calls before, and None the first
            T times.

        Raises
        ------
        UsageError
            If there are fewer micro-batches than parts of the scheme, or
            ``compute_part`` gives something else than before; or if a call is
            under way, in which this one is made, or of another thread.
        CodeError
            On all ranks, if the sum would be drowned by rounding errors.
        PeerLost, PeerLate, Revoked
            If ranks that it needs have died, raised an error, or are too late.
        """
        with self._call:
            self._refuse()
            if self._wait.is_outlived:
                self._reopen()
            return self._step(compute_part, parts)

    def _step(self, compute_part: Callable[[Any], Any], parts: int | Sequence[Any]) -> Any:
        try:
            argument.instance(STEP, "compute_part", compute_part, Callable, "give a function")
            given = read_parts(parts)
            count = len(given)
            if self._auto is not None:
                self._switch(self._auto.fitting(count))
            check_enough(count, self.scheme)
        except BaseException as error:  # a sequence may raise what it likes
            if self._vectors is None:  # the others agree on the layout of their first gradients
                self._wait.is_broken = True
                self._agreed_layout(None, error)
            self._wait.tell_failure(error)
            raise
        job = self.round - self._base + 1
        self._jobs[job] = Batch(compute_part, given, self.scheme.parts)
        self._last_job = job
        found = self._told(self._run_round, self.round + 1)
        if self._auto is not None and self._auto.is_due(self.round):
            self._told(self._meeting.call, self._wait, partial(self._choose, count))
        return found

    def _choose(self, parts: int, interrupted: BaseException | None) -> None:
        """Choose a scheme from the times of all ranks; collective over the communicator."""
        assert self._auto is not None
        self._auto.choose(parts)
        if interrupted is not None:
            raise interrupted
        self._switch(self._auto.fitting(parts))

    def _switch(self, scheme: Scheme) -> None:
        """Go on with another scheme without delay, from the next round on.

        Local: ranks that are some rounds behind switch when they come there.
        """
        before, self._pristine = self._pristine, scheme
        if scheme is before or described(scheme) == described(before):
            return
        self.scheme = scheme.copy()
        self._base, self._last_job = self.round, 0
        self._jobs.clear()
        topology = self._comm.membership.topology
        self._rank_of = order_of_workers(scheme, self._cells, topology)
        self._worker = self._rank_of.index(self._rank)
        self._shared = self._shared_work()

    def flush(self) -> list[Any]:
        """Give the sums that `step` has not given yet.

        Collective; the next `step` begins anew.

        Returns
        -------
        list
            One sum a call of `step` that returned None, in their order; empty
            for a scheme without delay.
        """
        with self._call:
            self._refuse()
            return self._flush()

    def _flush(self) -> list[Any]:
        if self._wait.is_outlived:
            if self._last_job and self.scheme.delay:
                problem = "jobs that were under way are lost in a recovery"
                raise Revoked(STEP, (), problem, "flush in each attempt", for_good=True)
            return []
        found = []
        if self._last_job:
            sums = []
            for _ in range(self.scheme.delay):
                self.scheme.skip(self.round + 1 - self._base)
                sums.append(self._told(self._run_round, self.round + 1))
            found = sums[-self._last_job :]
        self._base, self._last_job = self.round, 0
        self._jobs.clear()
        self.scheme = self._pristine.copy()
        return found

    def statistics(self) -> dict[str, Any]:
        """Tell what the rounds were like.  Local.

        Returns
        -------
        dict
            ``rounds``; ``late`` and ``abandoned``, arrays with a number of
            rounds for each rank: not in time, and given up (of ranks of other
            nodes -1); ``moved_bytes`` of node memory and ``sent_bytes`` to
            other nodes by this rank; ``waits`` and ``wait_s`` for ranks more
            than ``ahead`` rounds behind.
        """
        if self._last_statistics is not None:
            return dict(self._last_statistics)
        abandoned = np.full(len(self._late), -1, np.int64)
        for member, rank in enumerate(self._cells[self._mine]):
            abandoned[rank] = self._memory.words.load(self._memory.abandoned(member))
        return {
            "rounds": self.round,
            "late": self._late.copy(),
            "abandoned": abandoned,
            "moved_bytes": self._exchange.moved_bytes,
            "sent_bytes": self._messages.sent_bytes,
            "waits": self._waits,
            "wait_s": self._waited_s,
        }

    @property
    def _name(self) -> str:
        return type(self.scheme).__name__

    def _refuse(self) -> None:
        if self._is_closed:
            raise UsageError(STEP, "the CodedAllreduce is closed", "make a new one")
        self._wait.refuse()

    def _told(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do what all ranks do; an error on this rank ends it for all."""
        try:
            return work(*arguments)
        except BaseException as error:
            if not self._wait.is_broken:
                self._wait.tell_failure(error)
            raise

    def _run_round(self, round_: int) -> Any:
        own = self.scheme.tasks(round_ - self._base)[self._worker]
        tasks = [task for task in own if task.job <= self._last_job]
        before_s = self._computed_s()
        if self._vectors is None:
            self._open_vectors(tasks)
        self._enter(round_)
        self._decision.begin(round_)
        finished = self._work(round_, tasks)
        if self._record is not None:
            self._record.note(self._computed_s() - before_s)
        if self._auto is not None:
            batch = self._jobs[self._last_job]
            self._auto.note(batch.seconds, batch.computed)
        words, memory = self._memory.words, self._memory
        if finished:
            words.store(memory.rank_word(round_, self._member, STATE), WAITS)
            self._wait_for_decision()
        else:
            words.add(memory.abandoned(self._member), 1)
        ranks = self._decision.ranks()
        self._deliver(round_, ranks)
        with self._wait.explaining():
            result = self._move(round_, ranks)
            if memory.leave(round_):
                self._decision.clear(round_)
        self.round = round_
        return result

    def _open_vectors(self, tasks: Sequence[Any]) -> None:
        """Make the memory of vectors, once their layout is known; collective."""
        layout, error = None, None
        try:
            if tasks:
                batch = self._jobs[tasks[0].job]
                first = batch.of_part(tasks[0].parts[0])[0]
                layout = GradientLayout.of(batch.compute_ahead(first))
        except BaseException as met:  # the others would wait for this rank
            error = met
        slots = self._ahead + 1
        with DeferredHandlers():  # the others count on this rank until all have the memory
            agreed = self._agreed_layout(layout, error)
            self._check_types(agreed)
            if self._max_noise is None:
                self._max_noise = _NOISE / _rounding(agreed)
            self._vectors = VectorMemory(self._comm, self._node, agreed, self.scheme, slots)

    def _agreed_layout(
        self, layout: GradientLayout | None, error: BaseException | None
    ) -> GradientLayout:
        """Agree on the layout, once all ranks are there."""
        try:
            return self._meeting.call(
                self._wait, lambda met: agree_on_layout(self._comm, layout, error or met)
            )
        except PeerError as met:
            raise error or met from None

    def _check_types(self, layout: GradientLayout) -> None:
        """Refuse whole numbers where vectors are multiplied by fractions."""
        code = getattr(self.scheme, "code", None)
        if self.scheme.exact and (code is None or isinstance(code, GroupCode)):
            return
        if any(dtype.kind in "iu" for dtype in layout.element_types):
            problem = f"{self._name} multiplies {layout} by fractions"
            raise UsageError(STEP, problem, "give floats, or take Repetition")

    def _enter(self, round_: int) -> None:
        """Wait until the slot of a round is open: no rank is too many rounds behind."""
        memory, first = self._memory, round_ - self._ahead - 1
        load, cells = memory.words.load, range(len(self._cells))
        others = [memory.left_by(cell) for cell in cells if cell != self._mine]

        def is_open() -> bool:
            return memory.is_open(round_) and all(load(at) >= first for at in others)

        if not is_open():
            began = time.perf_counter()
            self._waits += 1
            self._wait.until(
                is_open, bool,
                late=lambda: memory.behind(first + 1) + memory.slow_elsewhere(first),
            )  # fmt: skip
            self._waited_s += time.perf_counter() - began
        memory.words.store(memory.entered(self._member), round_)

    def _work(self, round_: int, tasks: Sequence[Any]) -> bool:
        """Compute what this rank is to compute; tell whether it has come to the end."""
        assert self._vectors is not None
        layout, own = self._vectors.layout, self._vectors.own(round_)
        if self._shared is not None:
            return self._work_together(round_, own[0])
        work = [(task, self._jobs[task.job], own[task.slot]) for task in tasks]
        return compute_tasks(work, layout, self._is_over)

    def _computed_s(self) -> float:
        """Give the seconds in which the jobs that are open were computed."""
        return sum(batch.seconds for batch in self._jobs.values())

    def _work_together(self, round_: int, vector: Flats) -> bool:
        """Compute the own share, then wait a little, then help."""
        assert self._shared is not None
        assert self._vectors is not None
        batch, layout = self._jobs[self._last_job], self._vectors.layout
        self._shared.begin(round_)
        if not self._shared.compute_own(batch, layout, vector, self._is_over):
            return False
        state = self._memory.rank_word(round_, self._member, STATE)
        self._memory.words.store(state, WAITS)
        # Helping at once costs a tenth where nobody is slow: the others end within this time.
        grace_s = batch.seconds / max(batch.computed, 1) * len(batch.of_part(0))
        if not self._wait.until(self._decision.try_to_end, self._blocks, limit_s=grace_s):
            self._decision.resign()
            self._shared.help(batch, layout, vector, self._is_over)
        return True

    def _is_over(self) -> bool:
        """Look, after a micro-batch, whether the round is decided."""
        self._wait.look()
        return self._decision.is_decided()

    def _wait_for_decision(self) -> None:
        def late() -> list[int]:
            ended = set(self._decision.waiting())
            return [rank for rank in range(self._comm.Get_size()) if rank not in ended]

        self._wait.until(self._decision.try_to_end, self._blocks, late=late)

    def _workers(self, ranks: frozenset[int] | Sequence[int]) -> frozenset[int]:
        """Give the workers that ranks stand for."""
        return frozenset(w for w, rank in enumerate(self._rank_of) if rank in ranks)

    def _may_end(self, finished: frozenset[int]) -> bool:
        """Tell whether a round may end with the work of some ranks."""
        if not finished:
            return False
        if self._shared is not None:
            return True
        workers = self._workers(finished)
        if not self.scheme.may_end(self.round + 1 - self._base, workers):
            return False
        return len(finished) == self._comm.Get_size() or not self._is_too_noisy(workers)

    def _is_too_noisy(self, workers: frozenset[int]) -> bool:
        """Tell whether rounding errors would drown the sum of one round."""
        code = getattr(self.scheme, "code", None)
        if code is None or self.scheme.delay or isinstance(code, GroupCode):
            return False  # a plain sum of vectors rounds no worse than any other
        assert self._max_noise is not None
        return bool(code.noise_gain(workers) > self._max_noise)

    def _is_complete(self) -> bool:
        return self._shared is None or self._shared.is_complete()

    def _blocks(self, dead: frozenset[int]) -> bool:
        """Tell whether the decision needs ranks that have died."""
        if len(self._cells) > 1:
            return True
        living = [rank for rank in range(self._comm.Get_size()) if rank not in dead]
        if self._shared is not None:
            here = self._cells[self._mine]
            return self._shared.is_blocked([here.index(rank) for rank in living])
        return not self._may_end(frozenset(living))  # of those that died nothing counts

    def _deliver(self, round_: int, ranks: Sequence[int]) -> None:
        """Tell the scheme who counts in a round."""
        late = np.ones(len(self._late), bool)
        late[list(ranks)] = False
        if self._shared is not None:
            late[:] = False
            for member, rank in enumerate(self._cells[self._mine]):
                late[rank] = not self._shared.has_own(member)
            self._late += late
            return
        self._late += late
        number = round_ - self._base
        for worker, tasks in enumerate(self.scheme.tasks(number)):
            self.scheme.deliver(number, worker, tasks if self._rank_of[worker] in ranks else ())

    def _move(self, round_: int, ranks: Sequence[int]) -> Any:
        """Make the sum of the job that is due, and copy it."""
        job = round_ - self._base - self.scheme.delay
        if job < 1:
            return None
        assert self._vectors is not None
        terms = self._terms(job, ranks)
        result = self._vectors.result(round_)
        self._exchange.exchange(
            round_, ranks, terms, result, self._vectors.layout,
            lambda ready: self._wait.until(
                ready, lambda dead: self._exchange.lacks(round_, ranks, dead)
            ),
        )  # fmt: skip
        self._jobs.pop(job, None)
        return self._vectors.layout.unpack(result)

    def _terms(self, job: int, ranks: Sequence[int]) -> list[VectorTerm]:
        """Give the vectors of which the sum of a job is made."""
        if self._shared is not None:
            return self._shared_terms(self._shared, job)
        try:
            terms = self.scheme.decode(job)
            self._refuse_noise(terms, ranks)
        except CodeError:
            self._wait.is_broken = True  # all ranks find it, late ones later: nobody is told
            raise
        return [
            VectorTerm(
                rank := self._rank_of[term.worker],
                self._vector(rank, term.round + self._base, term.slot),
                term.weight,
            )
            for term in terms
        ]

    def _refuse_noise(self, terms: Sequence[SumTerm], ranks: Sequence[int]) -> None:
        """Raise, on all ranks alike, if rounding errors would drown a sum."""
        most = self._max_noise
        assert most is not None
        largest = max((abs(term.weight) for term in terms), default=0.0)
        if largest > most or self._is_too_noisy(self._workers(ranks)):
            problem = f"rounding errors grow by more than {most:.3g} with {len(ranks)} ranks"
            remedy = "take Repetition, wider floats, or a larger max_noise"
            raise CodeError(STEP, problem, remedy)

    def _shared_terms(self, shared: SharedWork, job: int) -> list[VectorTerm]:
        """Give the vectors of the ranks that have added micro-batches."""
        here = self._cells[self._mine]
        return [
            VectorTerm(rank, self._vector(rank, job + self._base, 0), 1.0)
            for rank in range(self._comm.Get_size())
            if rank not in here or shared.holds(here.index(rank))
        ]

    def _vector(self, rank: int, round_: int, slot: int) -> Flats | None:
        """Give a vector of a rank; None if it is on another node."""
        here = self._cells[self._mine]
        assert self._vectors is not None
        return self._vectors.of(here.index(rank), round_, slot) if rank in here else None

    def _handle(self) -> None:
        """Receive what other nodes have sent."""
        self._decision.handle_deferred()
        for message in self._messages.come():
            if message.kind == FAILED:
                self._wait.note_failure(message.rank, message.data)
            else:
                self._decision.handle(message)

    def close(self) -> None:
        """Free the memory and the messages.  Collective; harmless twice.

        Sums that a scheme with a delay has not given yet are lost; see `flush`.
        In a forked child nothing is done.

        Raises
        ------
        UsageError
            If a call is under way, in which this one is made, or of another thread.
        """
        if self._is_closed or forked_child.is_child():
            return
        with self._call:
            self._close()

    def _close(self) -> None:
        self._last_statistics = self.statistics()
        self._is_closed = True
        try:
            if self._wait.is_current():
                self._part()
        except BaseException as error:
            if not self._wait.is_broken:
                self._wait.tell_failure(error)
            raise
        finally:
            self._release()

    def _part(self) -> None:
        """Wait until no rank needs this one any more, then free the messages."""
        memory, messages = self._memory, self._messages
        memory.close_rank(self._member)
        messages.end()
        self._wait.until(
            lambda: memory.has_closed() and messages.has_ended(), bool,
            late=lambda: memory.behind(CLOSED) + messages.without_end(),
        )  # fmt: skip
        messages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; after an exception no rank is waited for."""
        del traceback
        if kind is None:
            self.close()
        elif not (self._is_closed or error is None or forked_child.is_child()):
            self._is_closed = True
            if self._last_statistics is None:
                self._wait.tell_failure(error)
                self._call.finally_do(self._release)  # a thread may compute still

    def __repr__(self) -> str:
        return f"CodedAllreduce({self._name}, {self.scheme.n} ranks, round {self.round})"


def _rounding(layout: GradientLayout) -> float:
    """Give the largest rounding error of the elements, relative to 1."""
    floats = [dtype for dtype in layout.element_types if dtype.kind not in "iu"]
    return max((float(_finfo(dtype).eps) for dtype in floats), default=1e-30)
