"""A later look at parity that a restore did not need: the next loss may need it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from closeranks.checkpoint.control.pending import Pending
from closeranks.checkpoint.placement.slot_header import WRITING
from closeranks.checkpoint.restore.recovery_search import Recovery
from closeranks.errors import PeerError

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import Talk


def repair_parity(begin: Callable[[], Recovery], talk: Talk, pending: Pending) -> None:
    """Look at parity of a save whose data are whole; make anew what is damaged.

    Collective; on any thread.  Raises nothing: of lost ranks other calls tell.

    Parameters
    ----------
    begin : callable
        Gives the save that was restored.
    talk : Talk
        Between the ranks.
    pending : Pending
        Committed at the end, whatever came of it.
    """
    recovery = begin()
    try:
        talk.together("restore", None)  # it takes no core from who restores still
        if recovery.rebuild(recovery.verify(data=False, parity=True)):
            recovery.settle(WRITING)  # so that nobody takes it for whole
    except Exception as error:
        if not isinstance(error, PeerError):
            text = f"parity of step {pending.step} could not be looked at: {error}; save again"
            warnings.warn(text, RuntimeWarning, stacklevel=1)
    finally:
        pending.committed.reach()
        recovery.close()
