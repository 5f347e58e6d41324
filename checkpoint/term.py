"""A term: what ranks have in common from their meeting to the next recovery."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeranks.checkpoint.choosing import Damaged, Objection, Save, saves
from closeranks.checkpoint.delivery import Delivery
from closeranks.checkpoint.finding import Nodes, Recovery, scan
from closeranks.checkpoint.groups import Protection, nodes_of
from closeranks.checkpoint.header import WRITING, Header
from closeranks.checkpoint.layout import Layout, Share
from closeranks.checkpoint.saving import Place, Saving, carry_out
from closeranks.checkpoint.shelf import Shelf, clear
from closeranks.checkpoint.slots import found, look, place_of
from closeranks.checkpoint.talk import Talk
from closeranks.errors import CheckpointError, Unavailable, named

if TYPE_CHECKING:
    from closeranks.collectives.communicator import Communicator


class Term:
    """Who the ranks are, where their slots are, and how saves are counted.

    Making it is collective: all find out what is there.  Slots of earlier terms
    stay until something newer is committed.

    Parameters
    ----------
    comm : Communicator
        Of the job.
    protection : Protection
        Its erasure groups.
    key : str
        Name of the checkpoints, with that of the job.
    root : Path or None
        The file system in memory.
    keep : int
        Saves that are kept.
    chunk_bytes : int
        At most so many in a chunk.
    run : str, optional
        Of the term before, where there was one.

    Attributes
    ----------
    talk : Talk
        What the caller's thread says to other ranks.
    run : str
        What tells this run from others of the same name: 16 digits.
    unread : tuple of str
        Why files could not be read when they were last looked for.
    """

    def __init__(
        self,
        comm: Communicator,
        protection: Protection,
        key: str,
        root: Path | None,
        *,
        keep: int,
        chunk_bytes: int,
        run: str | None = None,
    ) -> None:
        self._key, self._root, self._keep, self._chunk_bytes = key, root, keep, chunk_bytes
        self.talk, self._background = Talk(comm), Talk(comm)
        nodes = nodes_of(comm.hierarchy).tolist()
        self._nodes = Nodes(nodes, self.talk.rank)
        self._place = Place(protection, tuple(nodes), self.talk.rank)
        self._shelf, self._kept = Shelf(self.talk.rank, root), list[int]()
        fresh = self.talk.everything([run, secrets.token_hex(8), secrets.randbits(32)])
        known = [one for one, *_ in fresh if one is not None]
        self.run: str | None = known[0] if known else None
        every = self.saves()
        if self.run is None:
            self.run = every[0].header.run if every else fresh[0][1]
        number = 1 + max((of >> 32 for of in self._epochs), default=0)
        self._epoch = number << 32 | fresh[0][2]
        self._generation = max((save.header.generation for save in every), default=0)

    @property
    def epoch(self) -> int:
        """Of the communicator; in another one it is of no use."""
        return self.talk.epoch

    def saves(self) -> list[Save]:
        """Find what is there of this run, the newest first.  Collective."""
        seen, unread = scan(self.talk, self._nodes, self._key, self._root)
        self.unread = tuple(unread)
        self._epochs = {one.header.epoch for one in seen}
        return saves(seen, self.run)

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

        def head(layout: Layout) -> Header:
            return Header(
                name=self._key, run=self.run or "", epoch=self._epoch, generation=generation,
                step=step, state=WRITING, world=self.talk.size,
                groups=len(self._place.protection.rings), share=Share(layout.group, 0, 0),
                layout=layout,
            )  # fmt: skip

        number = next(at for at in range(self._keep) if at not in self._kept)
        talk, most = self._background, self._chunk_bytes
        try:
            carry_out(saving, talk, self._place, self._shelf, number, head, most)
        except Exception as error:
            saving.pending.fail(error)
            return
        self._kept = [*self._kept, number][1 - self._keep :]
        if self._nodes.turn(self._nodes.here, 0) == self._nodes.rank:
            clear(self._key, self._epoch, self._root)
        saving.pending.committed.reach()

    def restore(self, save: Save, into: Any) -> tuple[Any, Objection | None]:
        """Give a state back, with what was lost made anew.

        Collective.

        Parameters
        ----------
        save : Save
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
        objection = save.objection()
        if objection is not None:
            return None, objection
        known = self._shelf.known()
        recovery = Recovery(save, self.talk, self._nodes, self._root, known)
        try:
            damaged = recovery.verify()
            objection = save.objection(damaged)
            if objection is not None:
                return None, objection
            wrong = recovery.rebuild(damaged)
            if wrong:
                recovery.settle(WRITING)  # so that nobody takes it for whole
                return None, Objection(
                    f"what was made anew of ranks {named(wrong)} is wrong", (), 0
                )
            recovery.settle()
            state = Delivery(recovery, self.talk, into).run()
        finally:
            recovery.close()
        if save.header.epoch == self._epoch:  # the next save takes another place
            place = place_of(Path(next(iter(save.found.values())).path))
            self._kept = [*(at for at in self._kept if at != place), place][1 - self._keep :]
        return state, None

    def forget_before(self, save: Save) -> None:
        """Remove what is older than a save that was restored, so that there is room.

        Local.  Slots that were being written in terms before are of no use, either.

        Parameters
        ----------
        save : Save
            Whole.
        """
        if self._nodes.turn(self._nodes.here, 0) != self._nodes.rank:
            return
        for path, of in found(self._key, self._root):
            with suppress(CheckpointError, Unavailable, OSError):
                header = look(path)
                useless = header.state == WRITING or header.age < save.header.age
                if of < self._epoch and header.run == self.run and useless:
                    path.unlink()

    def damaged(self, save: Save) -> dict[Share, Damaged]:
        """Look at all check sums of a save.  Collective."""
        recovery = Recovery(save, self.talk, self._nodes, self._root)
        try:
            return recovery.verify(everything=True)
        finally:
            recovery.close()

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
            self.talk.together("close", problem)
            if not keep:
                self._shelf.remove()
                clear(self._key, 1 << 63, self._root)
            self.talk.together("close", None)
        finally:
            self.close()
            self.talk.close()
            self._background.close()

    def close(self) -> None:
        """Let go of the slots; the files stay.  Local."""
        self._shelf.close()
