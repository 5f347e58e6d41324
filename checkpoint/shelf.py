"""The slots of one rank, and how a new save finds room beside older ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from closeranks.checkpoint.header import WRITING, Header
from closeranks.checkpoint.layout import Share
from closeranks.checkpoint.slots import Slot, found, path_of


@dataclass
class Shelf:
    """The slots that this rank has mapped, of all generations that are kept.

    Each save takes a *place*, the same on all ranks: that of what is kept no more.

    Parameters
    ----------
    rank : int
        This rank.
    root : Path or None
        The file system in memory.

    Attributes
    ----------
    slots : dict of int to dict of Share to Slot
        Place -> those in it.
    """

    rank: int
    root: Path | None
    slots: dict[int, dict[Share, Slot]] = field(default_factory=dict)

    def prepare(self, place: int, head: Header) -> None:
        """Make room for a save in the slots that this rank looks after.

        Local.  What was in the place is no longer: its header says so first.

        Parameters
        ----------
        place : int
            Which slots.
        head : Header
            Of the save; the share does not count.

        Raises
        ------
        Unavailable
            If node memory is full.
        """
        layout = head.layout
        before = self.slots.pop(place, {})
        mine = {}
        for share in layout.shares:
            header = replace(head, share=share, state=WRITING)
            old = before.pop(share, None)
            is_mine = layout.keeper(share) == self.rank
            if old is not None and not old.fits(header):
                self._drop(old)
                old = None
            if old is not None:
                mine[share] = old
                if is_mine:
                    old.write(header)
                    old.room[layout.filled(share) :] = 0
            elif is_mine:
                mine[share] = Slot.create(header, place, self.root)
        for old in before.values():
            self._drop(old)
        self.slots[place] = mine

    def map(self, place: int, head: Header, wanted: set[Share]) -> dict[Share, Slot]:
        """Map slots of other ranks of this node beside one's own.

        Local; their keepers have prepared them.

        Parameters
        ----------
        place : int
            Which slots.
        head : Header
            Of the save.
        wanted : set of Share
            Those that this rank writes into, or reads.

        Returns
        -------
        dict of Share to Slot
            Those, and this rank's own.
        """
        slots = self.slots[place]
        for share in wanted:
            header = replace(head, share=share)
            if share not in slots:
                slots[share] = Slot.attach(path_of(header, place, self.root))
            elif head.layout.keeper(share) != self.rank:
                slots[share].following(header)
        return slots

    def known(self) -> dict[Path, Slot]:
        """Give all that is mapped, by name.  Local."""
        return {slot.path: slot for slots in self.slots.values() for slot in slots.values()}

    def mark(self, place: int, state: str) -> None:
        """Say how far the slots that this rank looks after have come.  Local."""
        for slot in self._kept(place):
            slot.write(replace(slot.header, state=state))

    def remove(self) -> None:
        """Take the names of all slots away that this rank looks after.  Local."""
        for place in self.slots:
            for slot in self._kept(place):
                slot.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of all slots; the files stay.  Local."""
        for slots in self.slots.values():
            for slot in slots.values():
                slot.close()
        self.slots = {}

    def _kept(self, place: int) -> list[Slot]:
        """Give the slots of a place that this rank looks after."""
        return [slot for slot in self.slots.get(place, {}).values() if self._is_mine(slot)]

    def _is_mine(self, slot: Slot) -> bool:
        """Tell whether this rank looks after a slot."""
        return slot.header.layout.keeper(slot.header.share) == self.rank

    def _drop(self, slot: Slot) -> None:
        """Do without a slot, and without its file where it is this rank's."""
        if self._is_mine(slot):
            slot.path.unlink(missing_ok=True)
        slot.close()


def clear(name: str, epoch: int, root: Path | None) -> list[Path]:
    """Remove the slots of earlier epochs.

    Local; once something newer has been committed by all.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    epoch : int
        That is kept.
    root : Path or None
        The file system in memory.

    Returns
    -------
    list of Path
        What was removed.
    """
    gone = []
    for path, of in found(name, root):
        if of < epoch:
            path.unlink(missing_ok=True)
            gone.append(path)
    return gone
