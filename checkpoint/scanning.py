"""What is in the memory of all nodes: every rank hears the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from closeranks.checkpoint import slots
from closeranks.checkpoint.blank import is_blank
from closeranks.checkpoint.choosing import Found
from closeranks.checkpoint.header import Header
from closeranks.errors import CheckpointError, Unavailable

if TYPE_CHECKING:
    from closeranks.checkpoint.finding import Nodes
    from closeranks.checkpoint.talk import Talk


def scan(
    talk: Talk, nodes: Nodes, name: str, root: Path | None
) -> tuple[list[Found], list[str], set[int]]:
    """Find all slots of a name, on all nodes.

    Collective.

    Parameters
    ----------
    talk : Talk
        Between the ranks.
    nodes : Nodes
        Where they are.
    name : str
        Of the checkpoints.
    root : Path or None
        The file system in memory.

    Returns
    -------
    found : list of Found
        The same on all ranks.
    unread : list of str
        Why files of this name could not be read: as good as lost.
    epochs : set of int
        Of all that was found, and of blank slots: a first save was cut off there.

    Raises
    ------
    CheckpointError
        On all ranks, if a node has no such folder.
    """
    own: list[list[str]] = []
    unread: list[str] = []
    blank: list[int] = []

    def look() -> None:
        for path, epoch in sorted(slots.found(name, root)):
            try:
                own.append([str(path), slots.look(path).encode().decode()])
            except (CheckpointError, Unavailable) as error:
                if is_blank(path):  # nothing is lost with it
                    blank.append(epoch)
                else:
                    unread.append(str(error))

    is_first = nodes.turn(nodes.here, 0) == nodes.rank
    talk.taken("restore", look if is_first else lambda: None)
    every = talk.everything([own, unread, blank])
    found = [Found(nodes.nodes[rank], path, Header.decode(text.encode()))
             for rank, (lot, _, _) in enumerate(every) for path, text in lot]  # fmt: skip
    epochs = {one.header.epoch for one in found} | {of for _, _, lot in every for of in lot}
    return found, [text for _, lot, _ in every for text in lot], epochs
