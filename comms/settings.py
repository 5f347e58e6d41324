"""Settings from the environment: every ``CLOSERANKS_*`` name with a meaning.

The order is argument, then environment, then tuning file, then default.  A
name that is not listed here is refused, which finds misspelt names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from closeranks.errors import UsageError

PREFIX = "CLOSERANKS_"

#: Meaning of each setting; the names stand without the prefix.
SETTINGS: Mapping[str, str] = {
    "CHECK": "1: compare the arguments of all ranks at every call",
    "INTERPRETER": "python: run plans in Python only; compiled (default): where Numba is there",
    "TUNING": "path of a table of algorithms, or of one that closeranks tune wrote",
    "REMEMBER": "0: read and write no findings of trials; 1 (default): from job to job",
    "CODE": "folder where compiled code is kept; default: closeranks in the user's caches",
    "FAULTS": "what goes wrong on purpose, see closeranks.collectives.engine.fault_injection",
    "SPARES": "how many of the last ranks wait to replace others",
    "RECRUITS": "1: new processes can be started in the place of the dead; set by closeranks run",
    "JOINS": "set for a process that was started in the place of a dead one",
    "VOTES": "where the launcher hears how ranks end; set by closeranks run --faults",
    "RUN": "name of this run, where no SLURM job names it",
    "SITE": "name of the site this node stands in",
    "NIC": "network interface of this process",
    "LAB": "set inside an emulated cluster",
    "BEST_DIR": "where the bench keeps what the library's other settings gave",
    "BEST_LAUNCH": "set in launches that the bench makes for comparison",
}

_YES, _NO = ("1", "yes", "true", "on"), ("0", "no", "false", "off")


def setting(name: str) -> str | None:
    """Return the value of a setting, or None where it is not set.

    Parameters
    ----------
    name : str
        A name of `SETTINGS`, without the prefix.

    Returns
    -------
    str or None
        The text, as it stands in the environment of this process (local).
    """
    assert name in SETTINGS, name
    return os.environ.get(PREFIX + name)


def switch(name: str, *, unset: bool = False) -> bool:
    """Return a setting that is on or off.

    Parameters
    ----------
    name : str
        A name of `SETTINGS`, without the prefix.
    unset : bool
        What holds where it is not set, or is empty.

    Returns
    -------
    bool
        Whether it says yes.

    Raises
    ------
    UsageError
        If it says neither yes nor no (local).
    """
    text = (setting(name) or "").strip().lower()
    if not text:
        return unset
    if text in _YES:
        return True
    if text in _NO:
        return False
    raise UsageError(PREFIX + name, f"is {text!r}", f"one of {', '.join((*_YES, *_NO))}")


def runs_compiled() -> bool:
    """Tell whether plans may run in compiled code.

    Returns
    -------
    bool
        False where CLOSERANKS_INTERPRETER asks for Python.

    Raises
    ------
    UsageError
        If it asks for something else (local).
    """
    name = setting("INTERPRETER") or "compiled"
    if name not in ("compiled", "python"):
        raise UsageError(f"{PREFIX}INTERPRETER", f"is {name!r}", "compiled or python")
    return name == "compiled"


def refuse_unknown(environment: Mapping[str, str] | None = None) -> None:
    """Refuse names that begin with our prefix and mean nothing.

    Parameters
    ----------
    environment : mapping of str to str, optional
        Where to look; the environment of this process if not given.

    Raises
    ------
    UsageError
        If there is such a name (local).
    """
    names = os.environ if environment is None else environment
    unknown = sorted(
        name for name in names if name.startswith(PREFIX) and name[len(PREFIX) :] not in SETTINGS
    )
    if unknown:
        known = ", ".join(PREFIX + name for name in SETTINGS)
        raise UsageError("settings", f"no setting {', '.join(unknown)}", f"one of {known}")
