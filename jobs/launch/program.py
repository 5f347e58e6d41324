"""The program of a job: its words, and MPI for a verb.

`resolve` makes the words that a rank executes from what the user wrote after
``--``.  `begin` starts MPI for a verb, which may be called without a launcher.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from closeranks.errors import UsageError


def resolve(words: Sequence[str]) -> list[str]:
    """Make a program's words independent of the PATH of other nodes.

    A program that ends in ``.py`` is run with this Python, ``closeranks``
    is this package, and ``python`` is this Python.

    Parameters
    ----------
    words : sequence of str
        Program and arguments as given by the user.

    Returns
    -------
    list of str
        The words to execute.

    Raises
    ------
    UsageError
        If there is no program, it does not exist, or may not be executed.
    """
    if not words:
        raise UsageError("run", "no program given", "write it after --: ... -- prog.py arguments")
    first, rest = words[0], list(words[1:])
    if first in ("closeranks", str(Path(sys.executable).with_name("closeranks"))):
        return [sys.executable, "-m", "closeranks", *rest]
    if first in ("python", "python3"):
        return [sys.executable, *rest]
    if first.endswith(".py"):
        if not os.access(first, os.R_OK):
            raise UsageError("run", f"no file {first} to read here", "give the program's path")
        return [sys.executable, first, *rest]
    if shutil.which(first) is None:
        raise UsageError("run", *_missing(first))
    return [first, *rest]


def _missing(program: str) -> tuple[str, str]:
    """Say why a program cannot be started, and the way out."""
    path = Path(program)
    if path.is_dir():
        return f"{program} is a folder", "give the path of a program"
    if path.is_file() and os.sep in program:
        return f"{program} may not be executed", f"allow it by chmod +x {program}"
    if os.sep in program:
        return f"no program {program} to read here", "give the program's path"
    return f"no program {program} on the PATH", "give its path"


def python_of(words: Sequence[str]) -> str:
    """Tell which Python a program will run in.

    Parameters
    ----------
    words : sequence of str
        As `resolve` gives them.

    Returns
    -------
    str
        Path of a Python: the program's own if it is one, else this one.
    """
    name = Path(words[0]).name
    if name.startswith("python"):
        return shutil.which(words[0]) or sys.executable
    return sys.executable


def inside_a_job() -> bool:
    """Say whether this process is itself a rank of an MPI job.

    Returns
    -------
    bool
        True under mpirun, mpiexec or a step of srun.
    """
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    return any(name in os.environ for name in names)


#: How Open MPI's messages go, and the way of a process to itself, which needs no memory.
_WAYS: Final = "OMPI_MCA_btl"
_ITSELF: Final = "self"


def begin() -> None:
    """Start MPI, with nothing in node memory where this process is the whole job.

    Open MPI makes 16 MiB there for the messages of the ranks of a node.  A
    process that no launcher has started leaves them behind.  The variable is
    taken back, so that nothing that this process starts has it.  Local;
    whatever the user has set stays.
    """
    alone = not inside_a_job() and _WAYS not in os.environ
    if alone:
        os.environ[_WAYS] = _ITSELF
    try:
        from mpi4py import MPI  # noqa: F401
    finally:
        if alone:
            del os.environ[_WAYS]
