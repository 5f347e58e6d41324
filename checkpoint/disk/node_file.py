"""The file of a node, written from the slots in its memory.

`Persist` says which saves of a job go to disk, and where; `PersistedSave` is
the part of one save that this node keeps.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from closeranks.checkpoint.control.save_options import place_of
from closeranks.checkpoint.disk import hdf5_writer, saved_files
from closeranks.checkpoint.disk.hdf5_writer import About, Contents
from closeranks.checkpoint.erasure.crc32c import Area
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.memory.slot_file import Slot, look
from closeranks.checkpoint.placement.slot_header import WRITING, Header
from closeranks.checkpoint.placement.stripe_layout import Share
from closeranks.checkpoint.state import rank_image
from closeranks.comms.numeric_argument import whole
from closeranks.comms.shm.shared_file import SharedFile
from closeranks.comms.wait import wait
from closeranks.errors import CheckpointError, UsageError


@dataclass(frozen=True)
class PersistedSave:
    """A save in the slots of a node; it stays readable when these are let go.

    Made by `PersistedSave.of`.

    Attributes
    ----------
    header : Header
        Of one of the slots, as it was then.
    path : Path
        Of that slot.
    areas : mapping of Share to Area
        The data of all slots of the node.
    """

    header: Header
    path: Path
    areas: Mapping[Share, Area]

    @classmethod
    def of(cls, slots: Mapping[Share, Slot]) -> PersistedSave:
        """Take note of all slots of a node.  Local."""
        first = slots[min(slots)]
        return cls(first.header, first.path, {share: slot.data for share, slot in slots.items()})

    def check(self) -> None:
        """Raise CheckpointError if it is no longer there, whole.

        Local.  One slot says it for all: none is written over before all say that
        nothing is in them, and none says more before all ranks have copied theirs.
        """
        found = look(self.path)
        if found.age != self.header.age or found.state == WRITING:
            raise CheckpointError("persist", f"step {self.header.step} was written over")

    def about(self, name: str, node: int, files: int) -> About:
        """Give the header of the node's file.

        Local.

        Parameters
        ----------
        name : str
            Of the checkpoints.
        node, files : int
            Which node it is, and of how many.

        Returns
        -------
        About
            With the ranks of the node.
        """
        header, layout = self.header, self.header.layout
        ranks = tuple((rank, layout.sizes[rank].head - rank_image.FRONT, layout.sizes[rank].body)
                      for rank in sorted(layout.ranks[node]))  # fmt: skip
        return About(
            name, header.run, header.epoch, header.generation, header.step, header.world,
            node, files, layout.everybody, ranks,
        )  # fmt: skip


def write(folder: Path, said: About, kept: PersistedSave, check: Callable[[], None]) -> bool:
    """Write the file of a node, unless it is there.

    Local; one process of a node does it, others of the same node wait for it.

    Parameters
    ----------
    folder : Path
        Of the checkpoints of the name.
    said : About
        The header of the file.
    kept : PersistedSave
        The save that is written.
    check : callable
        Raises to give up.

    Returns
    -------
    bool
        Whether it was not there.

    Raises
    ------
    CheckpointError
        If it cannot be written, or a slot is damaged, or was written over.
    Unavailable
        If a slot is not there any more.
    """
    with _alone(kept, check):
        path = saved_files.make(folder, said)
        if path.exists():
            return False
        kept.check()
        for left in path.parent.iterdir():  # by who was killed
            if saved_files.is_begun(left.name, path.name):
                left.unlink(missing_ok=True)
        wrong = [tuple(share) for share, area in kept.areas.items() if area.damaged()]
        if wrong:
            raise CheckpointError("persist", f"slots {wrong} of step {said.step} are damaged")
        contents = {rank: _contents(kept, rank) for rank, _, _ in said.ranks}
        # Who leaves reads slots that others may write over meanwhile.
        hdf5_writer.write(path, said, contents, check=check, approve=kept.check)
        return True


@contextmanager
def _alone(kept: PersistedSave, check: Callable[[], None]) -> Iterator[None]:
    """Keep other processes of the node from writing the same file meanwhile."""
    with SharedFile.reading(kept.path) as handle:

        def is_ours() -> bool:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        wait(is_ours, abort=check, polite=True)
        try:
            yield
        finally:  # closing is not enough: a child forked meanwhile has it open, too
            fcntl.flock(handle, fcntl.LOCK_UN)


def _contents(kept: PersistedSave, rank: int) -> Contents:
    """Give the bytes of a rank, where they lie."""
    layout = kept.header.layout
    pieces, size = tuple(layout.pieces(rank)), layout.sizes[rank]

    def read(start: int, stop: int) -> Bytes:
        found = []
        for piece in pieces:
            first, last = max(start, piece.start), min(stop, piece.start + piece.nbytes)
            if first < last:
                at = piece.at + first - piece.start
                found.append(kept.areas[piece.share].memory[at : at + last - first])
        return found[0] if len(found) == 1 else np.concatenate(found)

    head, begin = read(0, size.head), layout.head(rank)
    rank_image.read(head)  # which objects to what is damaged
    text = head[rank_image.FRONT :].tobytes()
    return Contents(text, lambda start, stop: read(begin + start, begin + stop))


@dataclass(frozen=True)
class Persist:
    """The request.

    Attributes
    ----------
    name : str
        Of the checkpoints, without that of the job.
    folder : Path
        Where they are.
    every : int
        How many saves are made for each that is written.
    keep : int
        Saves that stay on disk.
    """

    name: str
    folder: Path
    every: int
    keep: int

    @classmethod
    def asked(
        cls, name: str, place: str | os.PathLike[str] | None, every: int | None, keep: int
    ) -> Persist | None:
        """Check the arguments of a caller; None if that is nothing.

        Local.

        Parameters
        ----------
        name : str
            Of the checkpoints.
        place : path or None
            The folder in which theirs is.
        every : int or None
            How many saves are made for each that is written.
        keep : int
            Saves that stay on disk.

        Raises
        ------
        UsageError
            If it makes no sense.
        """
        found = place_of("persist", place)
        count = 1 if every is None else whole("Checkpointer", "persist_every", every, 1)
        if found is None:
            if every is not None:
                raise UsageError("Checkpointer", f"persist_every={every!r} and no persist=",
                                 "give a folder, too")  # fmt: skip
            return None
        return cls(name, found.absolute() / name, count, keep)
