"""What is in the memory of all nodes: every rank hears the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from closeranks.checkpoint.memory import slot_file
from closeranks.checkpoint.placement.slot_header import Header
from closeranks.checkpoint.restore.generation_choice import Found
from closeranks.errors import CheckpointError, Unavailable

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import Talk
    from closeranks.checkpoint.restore.recovery_search import Nodes


def scan(
    talk: Talk, nodes: Nodes, name: str, root: Path | None
) -> tuple[list[Found], tuple[str, ...]]:
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
    unread : tuple of str
        Why files of this name could not be read: as good as lost.

    Raises
    ------
    CheckpointError
        On all ranks, if a node has no such folder.
    """
    own: list[list[str]] = []
    unread: list[str] = []

    def look() -> None:
        for path, _ in sorted(slot_file.found(name, root)):
            try:
                own.append([str(path), slot_file.look(path).encode().decode()])
            except (CheckpointError, Unavailable) as error:
                unread.append(str(error))

    is_first = nodes.turn(nodes.here, 0) == nodes.rank
    talk.taken("restore", look if is_first else lambda: None)
    every = talk.everything([own, unread])
    found = [Found(nodes.nodes[rank], path, Header.decode(text.encode()))
             for rank, (lot, _) in enumerate(every) for path, text in lot]  # fmt: skip
    return found, tuple(text for _, lot in every for text in lot)
