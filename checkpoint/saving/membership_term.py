"""A term: what ranks have in common from their meeting to the next recovery."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


class MembershipTerm:
    """Who the ranks are, where their slots are, and how saves are counted.

    Making it is collective: all find out what is there.  Slots of earlier terms
    stay until something newer is committed.

    Parameters
    ----------
    comm : Communicator
        Of the job.
    protection : Protection
        Its erasure groups.
    asked : Claim or str
        That of the term before; the key, where there was none.
    root : Path or None
        The file system in memory.
    keep : int
        Saves that are kept.
    chunk_bytes : int
        At most so many in a chunk.
    persist : Persist, optional
        What is written to disk.
    options, is_open
        As of `closeranks.checkpoint.saving.job_claim.meet`.

    Attributes
    ----------
    channel : ControlChannel
        What the caller's thread says to other ranks.
    run : str
        What tells this run from others of the same name: 16 digits.
    key : str
        Name of the checkpoints, with that of the job.
    claim : Claim
        What the next term takes over.
    unread : tuple of str
        Why files could not be read when they were last looked for.
    """

    def __init__(
        self,
        comm: Communicator,
        protection: Protection,
        asked: Claim | str,
        root: Path | None,
        *,
        keep: int,
        chunk_bytes: int,
        persist: Persist | None = None,
        options: Mapping[str, Any],
        is_open: bool = False,
    ) -> None:
        self._root, self._keep, self._chunk_bytes = root, keep, chunk_bytes
        self.channel = ControlChannel(comm)
        nodes = nodes_of(comm.hierarchy).tolist()
        self._nodes = RankNodes(nodes, self.channel.rank)
        claim, drawn = meet(
            self.channel, self._nodes, asked, root, options=options, is_open=is_open
        )
        self._background, self.key = ControlChannel(comm), claim.key
        self._place = Place(protection, tuple(nodes), self.channel.rank)
        self._slot_set, self._kept = SlotSet(self.channel.rank, root), list[int]()
        self._library = (
            SavedFileIndex(self.channel, self._nodes, persist.folder) if persist else None
        )
        self.run = claim.run
        saved, volumes = self.saves(), self.volumes()
        if self.run is None:  # that of what is in memory, else of what is on disk
            runs = [save.header.run for save in saved] + [one.run for one in volumes if one.run]
            self.run = runs[0] if runs else claim.token
        self.claim = claim._replace(run=self.run)
        ages = [save.age for save in saved] + [volume.age for volume in volumes]
        epochs = self._epochs | {epoch for epoch, _ in ages}
        number = 1 + max((of >> 32 for of in epochs), default=0)
        self._epoch = number << 32 | drawn
        self._generation = max((generation for _, generation in ages), default=0)
        self._unseen: Save | None = None
        self._spoilt = set[tuple[type, tuple[int, int]]]()
        self._flushing: Flushing | None = None
        if persist is not None and self._library is not None:
            last = self._generation
            self._flushing = Flushing(comm, self._library, persist, volumes, self.run, last)

    @property
    def epoch(self) -> int:
        """Of the communicator; in another one it is of no use."""
        return self.channel.epoch

    def saves(self) -> list[Save]:
        """Find what is there of this run, the newest first.  Collective."""
        seen, self.unread = scan(self.channel, self._nodes, self.key, self._root)
        self._epochs = {one.header.epoch for one in seen}
        return saves(seen, self.run)

    def volumes(self) -> list[SavedFile]:
        """Find what is on disk, the newest first.  Collective."""
        return [] if self._library is None else self._library.scan()

    def found(self) -> list[Save | SavedFile]:
        """Find all that is there of this run, the newest first.  Collective.

        Of one save what is in memory comes first.
        """
        of_run = [one for one in self.volumes() if one.run in (None, self.run)]
        return sorted([*self.saves(), *of_run], key=lambda one: one.age, reverse=True)

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
        """Carry a save out, and tell what became of it.

        Collective; on any thread, one at a time.

        Parameters
        ----------
        saving : Saving
            Whose state.
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
        """Give a state back, with what was lost made anew.

        Collective.

        Parameters
        ----------
        one : Save or SavedFile
            Which.
        into : dict, list, tuple or None
            What the caller wants filled.

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

    def _read(self, volume: SavedFile, into: Any) -> tuple[Any, Objection | None]:
        """Give a state back from disk."""
        assert self._library is not None
        assert self._flushing is not None
        files = Files(volume, self._library)
        try:
            return Delivery(files, self.channel, into).run(), None
        except Unreadable as error:
            self._flushing.distrust(volume.age)
            return None, Objection(f"on disk: {error.problem}", (), 0)
        finally:
            files.close()

    def _revive(self, save: Save, into: Any) -> tuple[Any, Objection | None]:
        """Give a state back from memory, with what was lost made anew."""
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
        """Remove what is older than a save that was restored, so that there is room.

        Local.  Slots that were being written in terms before are of no use, either.

        Parameters
        ----------
        one : Save or SavedFile
            Whole.
        """
        if self._nodes.turn(self._nodes.here, 0) == self._nodes.rank:
            clear_before(self.key, self._epoch, self.run, one.age, self._root)

    def verify(self) -> dict[int, str]:
        """Look at all check sums; step -> what is wrong.  Collective."""
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
            assert self._library is not None
            assert self._flushing is not None
            wrong = [] if objection else self._library.damaged(one)
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
        """Wait for what is being written to disk; gives what nobody was told.  Local."""
        return None if self._flushing is None else self._flushing.finish()

    def leave(self) -> None:
        """Write the newest save of this node to disk, for the process goes.  Local."""
        if self._flushing is not None:
            self._flushing.leave(self._slot_set.slots)

    def availability(self) -> Availability:
        """Picture who holds which save.  Collective."""
        return of_nodes(self.key, self.saves(), len(self._nodes.ranks))

    def end(self, problem: Exception | None, *, keep: bool) -> None:
        """Go, after a normal end.

        Collective.

        Parameters
        ----------
        problem : Exception or None
            What keeps this rank from removing what is there.
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
