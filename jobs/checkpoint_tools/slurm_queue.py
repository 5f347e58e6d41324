"""Whether SLURM still knows a job."""

from __future__ import annotations

import subprocess
from typing import Final

#: How long squeue may take, seconds.
_PATIENCE_S: Final = 20.0
#: States of jobs that will not run any more.
_OVER: Final = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "TIMEOUT",
}  # fmt: skip


def state(job: str) -> str:
    """Ask SLURM for a job.

    Parameters
    ----------
    job : str
        Its number.

    Returns
    -------
    str
        Why what it has left must stay; empty if SLURM knows that it is over.
    """
    words = ["squeue", "-h", "-j", job, "-o", "%T"]
    try:
        asked = subprocess.run(
            words, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except FileNotFoundError:
        return f"job {job}: no squeue here to ask"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"job {job}: squeue failed, {error}"
    if asked.returncode:
        # That is how it says that it knows no such job any more.
        if "invalid job id" in asked.stderr.lower():
            return ""
        return f"job {job}: squeue failed, {' '.join(asked.stderr.split())[:80]}"
    alive = sorted(set(asked.stdout.split()) - _OVER)
    return f"job {job} is {', '.join(alive)}" if alive else ""
