"""A term: what ranks have in common from their meeting to the next recovery."""

from __future__ import annotations

import secrets
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
from closeranks.checkpoint.talk import Talk

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

    Attributes
    ----------
    talk : Talk
        What the caller's thread says to other ranks.
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
    ) -> None:
        self._key, self._root, self._keep, self._chunk_bytes = key, root, keep, chunk_bytes
        self.talk, self._background = Talk(comm), Talk(comm)
        nodes = nodes_of(comm.hierarchy).tolist()
        self._nodes = Nodes(nodes, self.talk.rank)
        self._place = Place(protection, tuple(nodes), self.talk.rank)
        self._shelf, self._kept = Shelf(self.talk.rank, root), list[int]()
        every = self.saves()
        fresh = self.talk.everything([secrets.token_hex(8), secrets.randbits(32)])[0]
        self._run = every[0].header.run if every else fresh[0]
        number = 1 + max((save.header.epoch >> 32 for save in every), default=0)
        self._epoch = number << 32 | fresh[1]
        self._generation = max((save.header.generation for save in every), default=0)

    @property
    def epoch(self) -> int:
        """Of the communicator; in another one it is of no use."""
        return self.talk.epoch

    def saves(self) -> list[Save]:
        """Find what is there, the newest first.  Collective."""
        return saves(scan(self.talk, self._nodes, self._key, self._root))

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
                name=self._key, run=self._run, epoch=self._epoch, generation=generation,
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
            recovery.rebuild(damaged)
            return Delivery(recovery, self.talk, into).run(), None
        finally:
            recovery.close()

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
