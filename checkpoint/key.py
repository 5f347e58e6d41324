"""What checkpoints are called in files: by their name, and by the job."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from closeranks.errors import UsageError

_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.-]{0,47}", re.ASCII)
#: Characters of a job that stand in a name as they are.
_PLAIN: Final = 32


def check_name(name: str) -> None:
    """Refuse a name that files cannot have.  Local."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError("Checkpointer", f"name={name!r}", "up to 48 of A-Z a-z 0-9 _ . -")


def key_of(name: str, job: str) -> str:
    """Name the files of checkpoints.

    Local.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    job : str
        Of the job; empty where there is none.

    Returns
    -------
    str
        With the job, in full or as a digest of it.
    """
    plain = re.sub(r"[^\w.-]", "_", job, flags=re.ASCII)
    if plain != job or len(job) > _PLAIN:
        plain = sha256(job.encode(errors="surrogateescape")).hexdigest()[:_PLAIN]
    return f"{name}.{plain}" if job else name
