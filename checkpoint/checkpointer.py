"""Checkpoints of a job in the memory of its nodes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakValueDictionary

from closeranks.checkpoint.control.pending import Pending, Worker, not_due, skipped
from closeranks.checkpoint.control.save_options import (
    SaveOptions,
    agreed_step,
    check_comm,
    place_of,
)
from closeranks.checkpoint.control.save_schedule import Cadence
from closeranks.checkpoint.control.sigterm_handler import SIGTERM_HANDLER
from closeranks.checkpoint.disk.node_file import Persist
from closeranks.checkpoint.memory import slot_locks
from closeranks.checkpoint.memory.run_key import key_of, own_job
from closeranks.checkpoint.memory.slot_set import end_alone
from closeranks.checkpoint.placement.erasure_groups import Protection, protect
from closeranks.checkpoint.restore.generation_choice import Objection, why_none
from closeranks.checkpoint.saving.save import Saving
from closeranks.comms.exit import forked_child
from closeranks.comms.settings import setting
from closeranks.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from closeranks.checkpoint.disk.saved_files import SavedFile
    from closeranks.checkpoint.restore.generation_choice import Availability, Save
    from closeranks.checkpoint.saving.membership_term import MembershipTerm
    from closeranks.collectives.communicator.communicator import Communicator

#: Those that are open in this process: two of one name would remove each other's slots.
_OPEN: Final[WeakValueDictionary[str, Checkpointer]] = WeakValueDictionary()
#: Bytes of a chunk: few enough to be lost alone, many enough that their sums cost nothing.
CHUNK_BYTES: Final = 256 << 10


class Checkpointer:
    """Keeps states of a job in its nodes' memory: they outlive ranks and nodes.

    Making it is local; the first `save` or `restore` looks for slots and
    files.  Close it, or leave its ``with`` block: by an error, or by SIGTERM,
    slots stay, and the newest save is written to disk where ``persist`` says.

    Parameters
    ----------
    comm : Communicator
        Of the job; after a recovery, of the survivors.
    name : str
        Up to 48 letters, digits, ``_``, ``.`` and ``-``; see `key`.
    parity : int
        Members of an erasure group that may be lost.
    group : int, optional
        Members of a group; see
        `closeranks.checkpoint.placement.erasure_groups.protect`.
    keep : int
        Saves that are kept, 2 to 9: one is not touched while the next is written.
    directory : path, optional
        A file system in memory; /dev/shm.
    persist : path, optional
        A folder on disk, best one that all nodes see: saves are written there
        in the background, below the name (and CLOSERANKS_RUN), the same for
        every job.
    persist_every : int, optional
        Write every so many-th save; each, if not given.
    on_busy : {"wait", "skip"}
        The action of `save` while the save before goes on, or while the slots
        that it takes are not on disk yet.
    interval : float, "auto" or None
        Seconds between two saves: calls of `save` before that do nothing.
        ``"auto"`` for the interval of least cost, as measured.
    mtbf_s : float, optional
        Mean seconds between failures of the job, for ``"auto"``.
    chunk_bytes : int
        Bytes that have a check sum of their own at most, a multiple of 64.

    Attributes
    ----------
    key : str
        The name, with the SLURM job and CLOSERANKS_RUN, or with the command where
        there is neither; that of the first rank, once all have met.
    skipped : tuple of str
        Why the last `restore` has left newer steps.

    Raises
    ------
    UsageError
        If an argument is none of these (local).  If ranks ask for different
        things, or if the key is open in this job or in another live job, the
        first collective call raises it, or `CheckpointError`, on all ranks.
    """

    CALLS_IN_CHILD = frozenset({"close"})

    def __init__(
        self,
        comm: Communicator,
        *,
        name: str,
        parity: int = 1,
        group: int | None = None,
        keep: int = 2,
        directory: str | os.PathLike[str] | None = None,
        persist: str | os.PathLike[str] | None = None,
        persist_every: int | None = None,
        on_busy: Literal["wait", "skip"] = "wait",
        interval: float | Literal["auto"] | None = None,
        mtbf_s: float | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        forked_child.refuse_in_child("Checkpointer")
        self._options = SaveOptions(name, parity, group, keep, on_busy, chunk_bytes)
        check_comm(comm)
        protect(comm.hierarchy, self._options.parity, self._options.group)  # which may object
        self._comm, self._cadence = comm, Cadence(interval, mtbf_s)
        self._root = place_of("directory", directory)
        self.key, of_all_jobs = key_of(name, own_job()), key_of(name, setting("RUN") or "")
        self._persist = Persist.asked(of_all_jobs, persist, persist_every, self._options.keep)
        self.skipped: tuple[str, ...] = ()
        self._term: MembershipTerm | None = None
        self._is_unended = self._is_closed = False
        self._untold: Exception | None = None
        self._report: Exception | None = None
        self._pending: Pending | None = None
        self._worker = Worker("checkpoints")
        forked_child.guard_object(self)

    def __enter__(self) -> Checkpointer:
        self._check_usable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._leave()

    def plan(self) -> Protection:
        """Tell which nodes protect each other, and how many may be lost.

        Local; the answer is printable.
        """
        self._check_usable()
        return protect(self._comm.hierarchy, self._options.parity, self._options.group)

    def save(self, step: int, state: Any, *, lazy: bool = False, now: bool = False) -> Pending:
        """Keep a state, if it is time to.

        Collective.  Returns once the state is copied; all else goes on in the
        background.

        Parameters
        ----------
        step : int
            The caller's number, the same on all ranks.
        state : dict, list or tuple
            A tree of arrays, numbers, strings and bytes, `Shard` and
            `PerRank`; its shape is the same on all ranks.  A value that is
            equal on all ranks is kept once in each erasure group.
        lazy : bool
            Return at once: the arrays stay as they are until ``copied``.
        now : bool
            Save whatever the interval says; the same on all ranks.

        Returns
        -------
        Pending
            ``.copied``, ``.committed`` and ``.persisted``, each with
            ``.wait(timeout_s)``.  Where it was not time, ``is_due`` is False, and
            nothing is waited for.

        Raises
        ------
        CheckpointError
            On all ranks, if one has an entry that cannot be saved, or if they
            differ; or the failure of the save before, if it was not raised
            yet.  Also if an earlier save is not on disk: this one goes on all
            the same.
        PeerLost, Revoked
            If ranks have died.
        """
        term = self._open()
        before = self._pending and self._pending.committed.error
        has_failed = before is not None or self._untold is not None
        if not self._cadence.is_due(term.channel.least, now=now, has_failed=has_failed):
            return not_due(step)
        if self._options.on_busy == "skip" and self._is_busy(term):
            return skipped(step)
        self._finish()
        problem, self._untold = self._untold, None
        self._pending = pending = Pending(step)
        saving = Saving.of(pending, state, problem, checks=self._comm.checks)
        term.expect(pending)
        with nullcontext() if self._comm.threaded else pending.committed.awaited():
            self._order(lambda: term.save(saving))
        if not lazy:
            pending.copied.wait()
            self._report, pending.report = self._report or pending.report, None
        self._cadence.note()
        report, self._report = self._report, None
        if report is not None:
            raise report
        return pending

    def restore(self, step: int | None = None, into: Any = None) -> tuple[int, Any] | None:
        """Give the newest state back that is whole, or can be made so.

        Collective.  Lost shares are made anew, in memory, on the nodes that
        are there now.  `skipped` tells why newer steps were left.

        Parameters
        ----------
        step : int, optional
            This one and no other.
        into : dict, list or tuple, optional
            A tree like the state: its arrays are filled.  For another number of
            ranks than saved it holds a `Shard` where the state did, and
            ``PerRank(function(old_values, rank))`` where ranks had values of their
            own.

        Returns
        -------
        (int, state) or None
            None if there is nothing of this name anywhere.

        Raises
        ------
        TooManyErasures
            On all ranks, if more is lost than can be made anew.
        NotFound
            On all ranks, if there is no such step.
        CheckpointError
            On all ranks, if ``into`` does not fit on one of them.
        PeerLost, Revoked
            If ranks have died.
        """
        self._finish()
        term = self._open()
        self.skipped = ()
        step = agreed_step(term.channel, step)
        saves, objections = term.found(), list[Objection]()
        for save in saves:
            if step is not None and save.step != step:
                continue
            state, objection = term.restore(save, into)
            if objection is None:
                self._came_back(term, save, is_newest=step is None)
                return save.step, state
            objections.append(objection)
            self.skipped += (f"step {save.step}: {objection.text}",)
        if saves:
            steps = [save.step for save in saves]
            raise why_none(objections, self.skipped, steps, f"{step} of {self.key}")
        if term.unread:
            raise CheckpointError("restore", "; ".join(term.unread[:4]), "remove what is of no use")
        return None

    def _came_back(self, term: MembershipTerm, save: Save | SavedFile, *, is_newest: bool) -> None:
        """Look after the parity of a save that was restored, and make room.  Collective."""
        self._pending = term.look_after(self._order)
        if is_newest:
            term.forget_before(save)

    def steps(self) -> tuple[int, ...]:
        """List the steps that can be restored, as far as is known.  Collective."""
        self._finish()
        term = self._open()
        return tuple(sorted({save.step for save in term.found() if term.is_whole(save)}))

    def availability(self) -> Availability:
        """Picture which node holds which save: printable, with ``draw(path)``.

        Collective.
        """
        self._finish()
        return self._open().availability()

    def verify(self) -> dict[int, str]:
        """Look at all check sums of all that is kept, in memory and on disk.

        Collective.

        Returns
        -------
        dict of int to str
            Step -> ``whole``, or what is wrong with it.
        """
        self._finish()
        return self._open().verify()

    def close(self, keep: bool = False) -> None:
        """End: the slots are removed, for the job is done.

        Collective, harmless twice.  Files that are being written are finished
        first, and stay.  If nothing was saved or restored since a recovery,
        the call is local: the last rank that closes on a node removes the
        slots there.

        Parameters
        ----------
        keep : bool
            Leave it where it is.

        Raises
        ------
        CheckpointError
            If the last save has failed, or is not on disk, and this was not
            raised yet; nothing is removed then, but by another call.
        PeerLost, Revoked
            If ranks have died; another call, after the recovery, removes the slots.
        """
        if forked_child.is_child():
            return
        self._is_closed = self._term is None and not self._is_unended
        if self._is_closed:
            return
        self._finish()
        term, self._is_unended = self._term, not keep
        unwritten = None if term is None else term.finish()
        problem, self._untold, self._report = self._untold or self._report, None, None
        self._forget()
        if term is not None and term.epoch == self._comm.epoch:
            try:  # nobody else has the slots before they are gone
                term.end(problem or unwritten, keep=keep)
            finally:
                slot_locks.release(self.key, self._root)
        else:
            slot_locks.release(self.key, self._root)
            if term is not None:
                term.close()
            end_alone(self.key, self._root, unwritten, keep=keep)
        self._is_unended, self._is_closed = False, True

    def _leave(self) -> None:
        """Go after an error: everything stays, and no rank is waited for."""
        if forked_child.is_child():
            return
        self._is_closed = True
        if self._term is not None:
            try:
                self._term.leave()
            finally:
                self._forget()
                slot_locks.release(self.key, self._root)

    def _forget(self) -> None:
        """Have no term any more."""
        self._worker.stop()
        self._term = None
        if _OPEN.get(self.key) is self:
            del _OPEN[self.key]
        SIGTERM_HANDLER.remove(self._told_to_end)

    def _told_to_end(self) -> None:
        """Put the newest save on disk, for the process has been told to end."""
        if (term := self._term) is not None:
            term.leave()

    def _open(self) -> MembershipTerm:
        """Meet the others, and find slots and files; once an epoch.  Collective."""
        from closeranks.checkpoint.saving.membership_term import MembershipTerm, TermOptions

        self._check_usable()
        if self._term is None or self._term.epoch != self._comm.epoch:
            before = None if self._term is None else self._term.claim
            if self._term is not None:
                self._finish()
                self._untold = self._report = None  # of members that are no more
                self._term.close()
            options = TermOptions(
                self._root, self._options.keep, self._options.chunk_bytes, self._persist
            )
            self._term = MembershipTerm.open(
                self._comm, self.plan(), before or self.key, options,
                options=self._options.plain(), is_open=before is None and self.key in _OPEN,
            )  # fmt: skip
            if self._persist is not None and before is None:
                SIGTERM_HANDLER.add(self._told_to_end)
            self.key = self._term.key
            _OPEN[self.key] = self
            self._cadence.restart()
        else:
            self._term.look_anew()
        return self._term

    def _order(self, task: Callable[[], None]) -> None:
        """Have something done, in the background where another thread may communicate."""
        self._worker.order(task) if self._comm.threaded else task()

    def _finish(self) -> None:
        """Wait for the save before; keep its failure if it was not raised yet."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        pending.await_end()
        self._untold = pending.untold or self._untold
        self._report = pending.report or self._report

    def _is_busy(self, term: MembershipTerm) -> bool:
        """Tell whether a save goes on on any rank.  Collective."""
        last = self._pending
        own = last is not None and last.is_due and not last.committed.done()
        return int(term.channel.least([not own and term.is_free()])[0]) != 1

    def _check_usable(self) -> None:
        """Refuse to work once closed, and in a child that was forked."""
        forked_child.refuse_in_child("Checkpointer")
        if self._is_closed:
            raise UsageError("Checkpointer", f"{self.key!r} is closed", "make another one")
