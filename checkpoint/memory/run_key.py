"""The key of checkpoints in file names: their name, and the job.

The job is the number of the SLURM job, CLOSERANKS_RUN, or both; without
either, the command and its folder.  The number of a step or of a launch is no
part: a job that is started again has another one, and must find its own slots.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from closeranks.comms.settings import PREFIX
from closeranks.errors import UsageError

_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.-]{0,47}", re.ASCII)
#: Characters of a job that stand in a name as they are.
_PLAIN: Final = 32
#: What of a run may stand behind the number of a job.
_BRIEF: Final = re.compile(r"[\w-]{1,20}", re.ASCII)
#: A job in a name: of SLURM, with the run; a command; a run whose name is too long.
JOB: Final = re.compile(r"(?P<job>\d+)(-[\w-]{1,20})?|cmd-[0-9a-f]{12}|[0-9a-f]{32}", re.ASCII)


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
        plain = _digest(job)[:_PLAIN]
    return f"{name}.{plain}" if job else name


def job_of(environment: Mapping[str, str], command: Sequence[str], folder: str) -> str:
    """Tell this process's job from others, alike each time that it is started.

    Local.

    Parameters
    ----------
    environment : mapping of str to str
        With SLURM_JOB_ID, or CLOSERANKS_RUN, or both.
    command : sequence of str
        The command that was started; it counts if there is neither.
    folder : str
        Where.

    Returns
    -------
    str
        For `key_of`; never empty.

    Examples
    --------
    >>> job_of({"SLURM_JOB_ID": "4711", "CLOSERANKS_RUN": "b"}, [], "")
    '4711-b'
    >>> job_of({}, ["train.py"], "/home/me")
    'cmd-f81f4d2b3f0b'
    """
    job, run = environment.get("SLURM_JOB_ID", ""), environment.get(f"{PREFIX}RUN", "")
    if job and run:
        return f"{job}-{run if _BRIEF.fullmatch(run) else _digest(run)[:12]}"
    return job or run or f"cmd-{_digest(json.dumps([folder, *command]))[:12]}"


def own_job() -> str:
    """Tell the job of this process from others.  Local."""
    folder = ""
    with suppress(OSError):  # it may have been removed meanwhile
        folder = str(Path.cwd())
    return job_of(os.environ, sys.orig_argv[1:] or sys.argv, folder)


def _digest(text: str) -> str:
    """Give 64 digits that stand for a text."""
    return sha256(text.encode(errors="surrogateescape")).hexdigest()
