"""A term: the common state of the ranks from a meeting to the next recovery.

`choose_run` decides, without I/O, how a term counts.  `MembershipTerm.open`
does the collective work of a meeting; the other methods serve a
`Checkpointer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from closeranks.checkpoint.control.control_channel import ControlChannel
from closeranks.checkpoint.control.pending import Pending
from closeranks.checkpoint.disk.node_file import Persist
from closeranks.checkpoint.disk.saved_files import Files, SavedFile, SavedFileIndex
from closeranks.checkpoint.memory.slot_set import EVERY, SlotSet, clear, clear_before
from closeranks.checkpoint.placement.erasure_groups import Protection, nodes_of
from closeranks.checkpoint.placement.slot_header import WRITING, WRITTEN, Header, place_of
from closeranks.checkpoint.placement.stripe_layout import Share, StripeLayout
from closeranks.checkpoint.restore.generation_choice import (
    Availability,
    Found,
    Objection,
    Save,
    of_nodes,
    saves,
)
from closeranks.checkpoint.restore.recovery_search import (
    RankNodes,
    SaveRecovery,
    Slots,
    Unreadable,
    scan,
)
from closeranks.checkpoint.restore.redistribution import Delivery
from closeranks.checkpoint.restore.repair import repair_parity
from closeranks.checkpoint.saving.flush import Flushing
from closeranks.checkpoint.saving.job_claim import Claim, meet
from closeranks.checkpoint.saving.save import Place, Saving, carry_out
from closeranks.errors import CheckpointError, named

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator


class RunChoice(NamedTuple):
    """How a term counts.

    Attributes
    ----------
    run : str or None
        Run that the slots and files belong to; None where there are none.
    epochs : int
        Terms before this one, as far as slots and files tell.
    generation : int
        Number of the newest save.
    """

    run: str | None
    epochs: int
    generation: int

    def epoch(self, drawn: int) -> int:
        """Give the number of this term: the next one, with 32 bits drawn for it."""
        return self.epochs + 1 << 32 | drawn


def choose_run(
    saved: Sequence[Save], files: Sequence[SavedFile], seen: Iterable[int] = ()
) -> RunChoice:
    """Choose which run goes on, and where its numbers do.

    Local and pure.

    Parameters
    ----------
    saved : sequence of Save
        In memory, the newest first.
    files : sequence of SavedFile
        On disk, the newest first.
    seen : iterable of int
        Epochs of all slots, also of slots that hold no save.

    Returns
    -------
    RunChoice
        The run in memory comes first, then the run on disk.  Epochs and
        generations count from the largest of both.
    """
    runs = [save.header.run for save in saved] + [one.run for one in files if one.run]
    ages = [save.age for save in saved] + [one.age for one in files]
    epochs = max((epoch >> 32 for epoch in (*seen, *(epoch for epoch, _ in ages))), default=0)
    generation = max((generation for _, generation in ages), default=0)
    return RunChoice(runs[0] if runs else None, epochs, generation)


class TermOptions(NamedTuple):
    """The options of a `Checkpointer` that a term needs.

    Attributes
    ----------
    root : Path or None
        The file system in memory.
    keep : int
        Saves that are kept.
    chunk_bytes : int
        Bytes of a chunk at most.
    persist : Persist or None
        The request for disk, if any.
    """

    root: Path | None
    keep: int
    chunk_bytes: int
    persist: Persist | None = None


class MembershipTerm:
    """Where the slots of the ranks are, and how saves are counted.

    `open` makes one.  Slots of earlier terms stay until something newer is
    committed.

    Parameters
    ----------
    channel, background : ControlChannel
        Between the ranks: for the caller's thread, and for the thread that saves.
    place : Place
        Where this rank stands.
    options : TermOptions
        The request.
    claim : Claim
        The claim to the slots; with the run, if it is known.

    Attributes
    ----------
    channel : ControlChannel
        The channel of the caller's thread.
    run : str or None
        Tells this run from others of the same name: 16 digits.
    key : str
        Name of the checkpoints, with that of the job.
    claim : Claim
        The next term takes it over.
    unread : tuple of str
        Why files could not be read when they were last looked for.
    """

    def __init__(
        self,
        channel: ControlChannel,
        background: ControlChannel,
        place: Place,
        options: TermOptions,
        claim: Claim,
    ) -> None:
        self.channel, self._background, self._place = channel, background, place
        self._root, self._keep, self._chunk_bytes, persist = options
        self._nodes = RankNodes(place.nodes, place.rank)
        self.claim, self.key, self.run = claim, claim.key, claim.run
        self._slot_set, self._kept = SlotSet(place.rank, self._root), list[int]()
        self._index = SavedFileIndex(channel, self._nodes, persist.folder) if persist else None
        self._flushing: Flushing | None = None
        self._epoch = self._generation = 0
        self._seen: list[Found] = []
        self._first: list[Save | SavedFile] | None = None
        self._unseen: Save | None = None
        self._spoilt = set[tuple[type, tuple[int, int]]]()
        self.unread: tuple[str, ...] = ()

    @classmethod
    def open(
        cls,
        comm: Communicator,
        protection: Protection,
        asked: Claim | str,
        term: TermOptions,
        *,
        options: Mapping[str, Any],
        is_open: bool = False,
    ) -> MembershipTerm:
        """Meet the other ranks, and find their slots and files.

        Collective.  All ranks take five steps together: a channel; the claim;
        a channel for the background; the scan of memory and disk; a channel
        for the thread that writes files.

        Parameters
        ----------
        comm : Communicator
            Of the job.
        protection : Protection
            Its erasure groups.
        asked : Claim or str
            Claim of the term before; the key, where there was none.
        term : TermOptions
            The request.
        options, is_open
            As of `closeranks.checkpoint.saving.job_claim.meet`.

        Returns
        -------
        MembershipTerm
            The same on all ranks.

        Raises
        ------
        UsageError, Disagreement, CheckpointError
            As of `closeranks.checkpoint.saving.job_claim.meet`.
        """
        channel = ControlChannel(comm)
        nodes = tuple(nodes_of(comm.hierarchy).tolist())
        place = Place(protection, nodes, channel.rank)
        of_ranks = RankNodes(nodes, channel.rank)
        claim, drawn = meet(channel, of_ranks, asked, term.root, options=options, is_open=is_open)
        made = cls(channel, ControlChannel(comm), place, term, claim)
        saved, files = made.saves(), made.files()
        chosen = choose_run(saved, files, {one.header.epoch for one in made._seen})
        run = claim.run or chosen.run or claim.token
        made.claim, made.run = claim._replace(run=run), run
        made._epoch, made._generation = chosen.epoch(drawn), chosen.generation
        made._first = made._of_run(saved, files)
        if made._index is not None and term.persist is not None:
            made._flushing = Flushing(
                comm, made._index, term.persist, files, run, chosen.generation
            )
        return made

    @property
    def epoch(self) -> int:
        """Of the communicator; in another one it is of no use."""
        return self.channel.epoch

    def saves(self) -> list[Save]:
        """Find the saves of this run in memory, the newest first.  Collective."""
        self._seen, self.unread = scan(self.channel, self._nodes, self.key, self._root)
        return saves(self._seen, self.run)

    def files(self) -> list[SavedFile]:
        """Find the saves on disk, the newest first.  Collective."""
        return [] if self._index is None else self._index.scan()

    def found(self) -> list[Save | SavedFile]:
        """Find all that is there of this run, the newest first.  Collective.

        Of one save the slots come before the files.  The result of the scan in
        `open` is taken as it is, unless `look_anew` was called since.
        """
        first, self._first = self._first, None
        if first is not None:
            return first
        files = self.files()
        return self._of_run(self.saves(), files)

    def look_anew(self) -> None:
        """Have `found` look again: time has passed since the term was opened.  Local."""
        self._first = None

    def _of_run(self, saved: Sequence[Save], files: Sequence[SavedFile]) -> list[Save | SavedFile]:
        """Put the saves of this run in order."""
        of_run = [one for one in files if one.run in (None, self.run)]
        return sorted([*saved, *of_run], key=lambda one: one.age, reverse=True)

    def expect(self, pending: Pending) -> None:
        """Say of a new save whether it will be written to disk.  Local."""
        if self._flushing is None:
            pending.stays("no persist= was given")
        else:
            self._flushing.expect(pending, self._generation + 1)

    def is_free(self) -> bool:
        """Tell whether the slots that the next save takes are not being written.  Local."""
        return self._flushing is None or self._flushing.is_free(self._next)

    def save(self, saving: Saving) -> None:
        """Carry a save out, and report the outcome.

        Collective; on any thread, one at a time.

        Parameters
        ----------
        saving : Saving
            The save.
        """
        self._generation += 1
        generation, step = self._generation, saving.pending.step

        def head(layout: StripeLayout) -> Header:
            return Header(
                name=self.key, run=self.run or "", epoch=self._epoch, generation=generation,
                step=step, state=WRITING, world=self.channel.size,
                groups=len(self._place.protection.rings), share=Share(layout.group, 0, 0),
                layout=layout,
            )  # fmt: skip

        number, channel, most = self._next, self._background, self._chunk_bytes
        try:
            self._wait(number, saving.pending)
            carry_out(saving, channel, self._place, self._slot_set, number, head, most)
        except Exception as error:
            saving.pending.fail(error)
            return
        self._kept = [*self._kept, number][1 - self._keep :]
        if self._nodes.turn(self._nodes.here, 0) == self._nodes.rank:
            clear(self.key, self._epoch, self._root)
        if self._flushing is not None:
            self._flushing.take(number, self._slot_set.slots[number], saving.pending)
        saving.pending.committed.reach()

    @property
    def _next(self) -> int:
        """The slots that the next save takes."""
        return next(at for at in range(self._keep) if at not in self._kept)

    def _wait(self, number: int, pending: Pending) -> None:
        """Wait until slots are on disk; have a save tell if they are not."""
        failed = self._flushing.wait(number) if self._flushing is not None else None
        if failed is not None:  # on all ranks
            mark = failed.persisted
            is_told = int(self._background.least([mark.is_told])[0]) == 1
            mark.is_told = True
            if not is_told:
                problem = f"step {failed.step} is not on disk: {mark.error}"
                pending.report = CheckpointError("save", problem, "this save goes on")

    def restore(self, one: Save | SavedFile, into: Any) -> tuple[Any, Objection | None]:
        """Give a state back, with lost parts made anew.

        Collective.

        Parameters
        ----------
        one : Save or SavedFile
            Which.
        into : dict, list, tuple or None
            The tree that the caller wants filled.

        Returns
        -------
        state : object
            None if there is an objection.
        objection : Objection or None
            Why it cannot be.
        """
        objection = one.objection()
        if objection is not None:
            return None, objection
        read, revive = self._read, self._revive
        state, objection = read(one, into) if isinstance(one, SavedFile) else revive(one, into)
        self._judge(one, is_whole=objection is None)
        return state, objection

    def is_whole(self, one: Save | SavedFile) -> bool:
        """Tell whether all of a save is there, and was not found to be damaged.  Local."""
        return not one.objection() and (type(one), one.age) not in self._spoilt

    def _judge(self, one: Save | SavedFile, *, is_whole: bool) -> None:
        """Note whether a save that was looked at can be restored."""
        (self._spoilt.discard if is_whole else self._spoilt.add)((type(one), one.age))

    def _read(self, save: SavedFile, into: Any) -> tuple[Any, Objection | None]:
        """Give a state back from disk."""
        assert self._index is not None
        assert self._flushing is not None
        files = Files(save, self._index)
        try:
            return Delivery(files, self.channel, into).run(), None
        except Unreadable as error:
            self._flushing.distrust(save.age)
            return None, Objection(f"on disk: {error.problem}", (), 0)
        finally:
            files.close()

    def _revive(self, save: Save, into: Any) -> tuple[Any, Objection | None]:
        """Give a state back from memory, with lost parts made anew."""
        known = self._slot_set.known()
        recovery = SaveRecovery(save, self.channel, self._nodes, self._root, known)
        try:
            damaged = recovery.verify()
            objection = save.objection(damaged)
            if objection is not None:
                return None, objection
            wrong = recovery.rebuild(damaged)
            if wrong:
                recovery.settle(WRITING)  # so that nobody takes it for whole
                text = f"what was made anew of ranks {named(wrong)} is wrong"
                return None, Objection(text, (), 0)
            recovery.settle()
            if self._flushing is not None:
                self._adopt(recovery, self._flushing)
            state = Delivery(Slots(recovery, self.channel), self.channel, into).run()
        finally:
            recovery.close()
        is_coded = all(found.header.state != WRITTEN for found in save.found.values())
        self._unseen = save if is_coded and not (save.lost or damaged) else None
        if save.header.epoch == self._epoch:  # the next save takes another place
            place = place_of(Path(next(iter(save.found.values())).path))
            self._kept = [*(at for at in self._kept if at != place), place][1 - self._keep :]
        return state, None

    def _adopt(self, recovery: SaveRecovery, flushing: Flushing) -> None:
        """Have a save that came back written when the process goes, if nodes are as then."""
        slots = self.channel.taken("restore", recovery.of_node)
        if int(self.channel.least([slots is not None])[0]) == 1 and slots is not None:
            flushing.adopt(slots)

    def look_after(self, order: Callable[[Callable[[], None]], object]) -> Pending | None:
        """Have parity of the save looked at that was restored without it, and repaired.

        Collective.  The next loss may need it.

        Parameters
        ----------
        order : callable
            Has something done that is collective, now or later.

        Returns
        -------
        Pending or None
            Committed when that is over; None if there is nothing to do.
        """
        save, self._unseen = self._unseen, None
        if save is None:
            return None
        pending = Pending(save.step)
        pending.is_due = False  # it is no save
        for mark in (pending.copied, pending.persisted):
            mark.reach()
        channel, known = self._background, self._slot_set.known
        order(lambda: repair_parity(
            lambda: SaveRecovery(save, channel, self._nodes, self._root, known()), channel, pending
        ))  # fmt: skip
        return pending

    def forget_before(self, one: Save | SavedFile) -> None:
        """Remove saves that are older than a restored one, to make room.

        Local.  Slots that were being written in terms before are of no use, either.

        Parameters
        ----------
        one : Save or SavedFile
            Whole.
        """
        if self._nodes.turn(self._nodes.here, 0) == self._nodes.rank:
            here = [(Path(found.path), found.header) for found in self._seen
                    if found.node == self._nodes.here]  # fmt: skip
            clear_before(here, self._epoch, self.run, one.age)

    def verify(self) -> dict[int, str]:
        """Look at all check sums; step -> verdict.  Collective."""
        memory: dict[int, str] = {}
        disk: dict[int, str] = {}
        for one in reversed(self.found()):
            (disk if isinstance(one, SavedFile) else memory)[one.step] = self._verified(one)
        return {step: "; ".join(lot[step] for lot in (memory, disk) if step in lot)
                for step in sorted({*memory, *disk})}  # fmt: skip

    def _verified(self, one: Save | SavedFile) -> str:
        """Look at all check sums of a save."""
        objection = one.objection()
        if isinstance(one, SavedFile):
            assert self._index is not None
            assert self._flushing is not None
            wrong = [] if objection else self._index.damaged(one)
            if wrong:
                self._flushing.distrust(one.age)
                self._judge(one, is_whole=False)
                return f"on disk: {', '.join(wrong[:4])}" + (", ..." if wrong[4:] else "")
            return objection.text if objection else "whole on disk"
        recovery = SaveRecovery(one, self.channel, self._nodes, self._root)
        try:
            damaged = recovery.verify(parity=True)
        finally:
            recovery.close()
        objection = one.objection(damaged)
        self._judge(one, is_whole=objection is None)
        return objection.text if objection else one.told(damaged)

    def finish(self) -> Exception | None:
        """Wait for files being written; gives a failure that was not raised yet.  Local."""
        return None if self._flushing is None else self._flushing.finish()

    def leave(self) -> None:
        """Write the newest save of this node to disk, for the process goes.  Local."""
        if self._flushing is not None:
            self._flushing.leave(self._slot_set.slots)

    def availability(self) -> Availability:
        """Picture which node holds which save.  Collective."""
        return of_nodes(self.key, self.saves(), len(self._nodes.ranks))

    def end(self, problem: Exception | None, *, keep: bool) -> None:
        """Go, after a normal end.

        Collective.

        Parameters
        ----------
        problem : Exception or None
            The reason why this rank removes nothing.
        keep : bool
            Whether to leave it.

        Raises
        ------
        CheckpointError
            On all ranks, if one has a problem; nothing is removed.
        """
        try:
            self.channel.together("close", problem)
            if not keep:
                self._slot_set.remove()
                clear(self.key, EVERY, self._root)
            self.channel.together("close", None)
        finally:
            self.close()
            if self._flushing is not None:
                self._flushing.close()
            self.channel.close()
            self._background.close()

    def close(self) -> None:
        """Let go of the slots; the files stay.  Local."""
        if self._flushing is not None:
            self._flushing.stop()
        self._slot_set.close()
