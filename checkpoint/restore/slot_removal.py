"""Removing slots that no job has use for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from closeranks.checkpoint.memory import slot_file, slot_locks
from closeranks.checkpoint.restore.slot_inventory import Holding, Kept
from closeranks.comms.shm.shared_file import SharedFile
from closeranks.errors import CheckpointError, Unavailable

#: What a slot starts with; or it is new, or its header is being written.
_STARTS: Final = (b"clsrslot", bytes(8))


def remove(holding: Holding, places: Sequence[Path]) -> str:
    """Remove the slots of a save.

    Local.  Nobody can open them meanwhile; what has become another save since it
    was looked at stays, and so does what is no slot.

    Parameters
    ----------
    holding : Holding
        What is removed.
    places : sequence of Path
        The folders that it is in.

    Returns
    -------
    str
        Why something was kept; empty if nothing was.
    """
    with ExitStack() as stack:
        for place in places:
            if not stack.enter_context(slot_locks.removing(place, holding.name)):
                return "open in a process"
        problems = [_remove(one) for one in holding.files]
    return "; ".join(dict.fromkeys(filter(None, problems)))


def _remove(one: Kept) -> str:
    """Remove a slot; gives why it was kept."""
    try:
        if one.header is None:
            with SharedFile.reading(one.path) as handle:
                start = handle.read(8)
            if start and not any(own.startswith(start) for own in _STARTS):
                return f"{one.path.name} is no slot"
        else:
            now = slot_file.look(one.path)
            if (now.run, now.age) != (one.header.run, one.header.age):
                return "overwritten meanwhile"
        one.path.unlink()
    except CheckpointError as error:
        return error.problem
    except Unavailable as error:
        return error.what
    except OSError as error:
        return f"{one.path}: {error.strerror}"
    return ""
