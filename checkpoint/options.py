"""What a checkpointer may be asked for."""

from __future__ import annotations

from closeranks.checkpoint.layout import ALIGNED
from closeranks.errors import UsageError


def check_options(keep: int, on_busy: str, chunk_bytes: int) -> None:
    """Refuse options that make no sense.

    Local.

    Parameters
    ----------
    keep, on_busy, chunk_bytes
        As `closeranks.checkpoint.Checkpointer` takes them.

    Raises
    ------
    UsageError
        With the one that is wrong.
    """
    if not 2 <= keep <= 9:
        raise UsageError("Checkpointer", f"keep={keep!r}", "give 2 to 9")
    if on_busy not in ("wait", "skip"):
        raise UsageError("Checkpointer", f"on_busy={on_busy!r}", "give 'wait' or 'skip'")
    if chunk_bytes < 4096 or chunk_bytes % ALIGNED:
        raise UsageError("Checkpointer", f"chunk_bytes={chunk_bytes!r}",
                         "give a multiple of 64, at least 4096")  # fmt: skip
