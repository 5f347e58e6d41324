"""The slots of one rank, and how a new save finds room beside older ones."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from closeranks.checkpoint.memory import slot_locks
from closeranks.checkpoint.memory.slot_file import Slot, found, path_of, still_says
from closeranks.checkpoint.placement.slot_header import WRITING, Header
from closeranks.checkpoint.placement.stripe_layout import Share, StripeLayout
from closeranks.comms.shm.shared_folder import ROOT, folder
from closeranks.errors import CheckpointError, Unavailable

#: Later than any epoch.
EVERY: Final = 1 << 63


@dataclass
class SlotSet:
    """The slots that this rank has mapped, of all generations that are kept.

    Each save takes a *place*, the same on all ranks: the place of a save that
    is kept no more.

    Parameters
    ----------
    rank : int
        This rank.
    root : Path or None
        The file system in memory.

    Attributes
    ----------
    slots : dict of int to dict of Share to Slot
        Place -> the slots in it.
    """

    rank: int
    root: Path | None
    slots: dict[int, dict[Share, Slot]] = field(default_factory=dict)

    def clear(self, place: int, head: Header) -> bool:
        """Unmap slots that a save cannot use, so that their room is free.

        Local.  The save that was in the place is lost: its headers say so
        first.

        Parameters
        ----------
        place : int
            Which slots.
        head : Header
            Of the save; the share does not count.

        Returns
        -------
        bool
            Whether there is nothing to `make`.
        """
        slots, layout = self.slots.setdefault(place, {}), head.layout
        for share, old in list(slots.items()):
            header = replace(head, share=share, state=WRITING)
            if share not in layout.shares or not old.fits(header):
                del slots[share]
                self._drop(old)
            elif layout.keeper(share) == self.rank:
                old.write(header)
                old.room[layout.filled(share) :] = 0
        return not self._missing(place, layout)

    def make(self, place: int, head: Header) -> None:
        """Make the slots that are missing of those that this rank looks after.

        Local; all ranks have cleared the place.

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
        for share in self._missing(place, head.layout):
            made = Slot.create(replace(head, share=share), place, self.root)
            self.slots[place][share] = made

    def map(self, place: int, head: Header, wanted: set[Share]) -> dict[Share, Slot]:
        """Map slots of other ranks of this node beside one's own.

        Local; their keepers have made them.

        Parameters
        ----------
        place : int
            Which slots.
        head : Header
            Of the save.
        wanted : set of Share
            The shares that this rank writes into, or reads.

        Returns
        -------
        dict of Share to Slot
            The wanted slots, and this rank's own.
        """
        slots = self.slots[place]
        for share in wanted:
            header = replace(head, share=share)
            is_mine = head.layout.keeper(share) == self.rank
            if share in slots and not is_mine:
                if slots[share].file.is_named():
                    slots[share].following(header)
                else:  # its keeper has made another one
                    slots.pop(share).close()
            if share not in slots:
                slots[share] = Slot.attach(path_of(header, place, self.root))
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
                with suppress(OSError):
                    slot.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of all slots; the files stay.  Local."""
        for slots in self.slots.values():
            for slot in slots.values():
                slot.close()
        self.slots = {}

    def _missing(self, place: int, layout: StripeLayout) -> list[Share]:
        """Give the shares that this rank looks after and has no slots for."""
        own = (share for share in layout.shares if layout.keeper(share) == self.rank)
        return [share for share in own if share not in self.slots[place]]

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


def clear_unless_open(name: str, root: Path | None) -> None:
    """Remove the slots of a name on this node, unless a process has it open.

    Local.  A slot that cannot be removed stays.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    root : Path or None
        The file system in memory.
    """
    with suppress(Unavailable), slot_locks.removing(folder(root or ROOT), name) as is_free:
        if is_free:
            clear(name, EVERY, root)


def end_alone(name: str, root: Path | None, unwritten: Exception | None, *, keep: bool) -> None:
    """End where the ranks are others now, or a call before has raised.

    Local.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    root : Path or None
        The file system in memory.
    unwritten : Exception or None
        Why the last save is not on disk.
    keep : bool
        Whether slots stay.

    Raises
    ------
    CheckpointError
        If the slots are all that is left of the save; they stay.
    """
    if keep:
        return
    if unwritten is not None:
        raise CheckpointError("close", f"the last save is not on disk: {unwritten}",
                              "save again, or close again to remove it")  # fmt: skip
    clear_unless_open(name, root)


def clear(name: str, epoch: int, root: Path | None) -> None:
    """Remove the slots of earlier epochs.

    Local; once something newer has been committed by all.  A slot that cannot
    be removed stays until the next time.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    epoch : int
        That is kept.
    root : Path or None
        The file system in memory.
    """
    with suppress(OSError, Unavailable):
        for path, of in found(name, root):
            if of < epoch:
                with suppress(OSError):  # others can be
                    path.unlink(missing_ok=True)


def clear_before(
    seen: Iterable[tuple[Path, Header]], epoch: int, run: str | None, age: tuple[int, int]
) -> None:
    """Remove slots of a run before a save, and slots that were being written.

    Local.  A slot that cannot be removed stays, and so does a slot that has
    another header by now.

    Parameters
    ----------
    seen : iterable of (Path, Header)
        Slots of this node, and their headers.
    epoch : int
        Slots of this one, or later, are kept.
    run : str or None
        The run of the slots.
    age : (int, int)
        Of the save.
    """
    for path, header in seen:
        useless = header.state == WRITING or header.age < age
        if header.epoch < epoch and header.run == run and useless:
            with suppress(OSError):
                if still_says(path, header):
                    path.unlink()
