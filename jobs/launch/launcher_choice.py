"""Which launchers are here, and which of them fits the MPI library."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from closeranks.errors import Unavailable, UsageError
from closeranks.jobs.launch import slurm_srun
from closeranks.jobs.launch.mpi_library import MpiLibrary

_NAMES = ("mpirun", "mpiexec", "mpiexec.hydra")


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks.

    Parameters
    ----------
    kind : str
        ``"openmpi"``, ``"mpich"`` (Hydra) or ``"srun"``.
    path : str
        Where it is.
    version : str
        Its version, empty if it does not say.
    """

    kind: str
    path: str
    version: str = ""

    def __str__(self) -> str:
        names = {"openmpi": "Open MPI", "mpich": "MPICH (Hydra)", "srun": "SLURM"}
        return f"{self.path} of {names[self.kind]} {self.version}".strip()


def candidates() -> list[Launcher]:
    """Find the MPI launchers: this environment's first, then the PATH's.

    Returns
    -------
    list of Launcher
        Each program once, in order of preference; without srun.
    """
    places = [Path(sys.executable).parent, Path(sys.prefix) / "bin"]
    places += [Path(part) for part in os.get_exec_path()]
    found: dict[Path, Launcher] = {}
    for place in places:
        for name in _NAMES:
            path = place / name
            if os.access(path, os.X_OK) and path.resolve() not in found:
                launcher = identify(str(path))
                if launcher is not None:
                    found[path.resolve()] = launcher
    return list(found.values())


@functools.cache
def identify(path: str) -> Launcher | None:
    """Ask a launcher for its name and version.

    Parameters
    ----------
    path : str
        The program.

    Returns
    -------
    Launcher or None
        None if it is none that is known here.
    """
    if Path(path).name == "srun":
        return Launcher("srun", path)
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return recognise(path, done.stdout + done.stderr)


def recognise(path: str, answer: str) -> Launcher | None:
    """Understand a launcher's answer to ``--version``.

    Parameters
    ----------
    path : str
        The program.
    answer : str
        Its own words.

    Returns
    -------
    Launcher or None
        None if the answer is not known.
    """
    number = re.search(r"\d+\.\d+(\.\d+)?\w*", answer)
    version = number.group() if number else ""
    if "Open MPI" in answer or "OpenRTE" in answer:
        return Launcher("openmpi", path, version)
    if "HYDRA" in answer or "Intel(R) MPI" in answer or "MPICH" in answer:
        return Launcher("mpich", path, version)
    return None


def choose(library: MpiLibrary, asked: str | None = None, *, srun_first: bool = True) -> Launcher:
    """Choose the launcher for a library.

    Parameters
    ----------
    library : MpiLibrary
        The library of the program.
    asked : str, optional
        Name or path of the launcher the user wants.
    srun_first : bool, optional
        Prefer srun inside a SLURM allocation.

    Returns
    -------
    Launcher
        One that starts jobs of this library.

    Raises
    ------
    UsageError
        If the launchers found start jobs of another library.
    Unavailable
        If there is none.
    """
    if asked is not None:
        return _asked(library, asked)
    if srun_first and "SLURM_JOB_ID" in os.environ:
        path = shutil.which("srun")
        if path and slurm_srun.PLUGINS.get(library.kind) in slurm_srun.plugins(path):
            return Launcher("srun", path)
    found = candidates()
    for launcher in found:
        if library.kind in (launcher.kind, "other"):
            return launcher
    if not found:
        raise Unavailable(
            "an MPI launcher (mpirun, mpiexec)",
            "install closeranks[openmpi] or load the site's MPI module",
        )
    raise _mismatch(library, found[0])


def check_survives(launcher: Launcher) -> None:
    """Refuse a launcher that ends a job with the first rank that dies.

    Parameters
    ----------
    launcher : Launcher
        The one that would start the job.

    Raises
    ------
    Unavailable
        Unless it is Open MPI's.
    """
    if launcher.kind != "openmpi":
        raise Unavailable(
            f"--faults with {launcher}", "use Open MPI 5 and its mpirun, in SLURM inside salloc"
        )


def _asked(library: MpiLibrary, asked: str) -> Launcher:
    """Take the launcher the user named, if it fits."""
    beside = Path(sys.executable).parent / asked
    path = str(beside) if "/" not in asked and os.access(beside, os.X_OK) else shutil.which(asked)
    launcher = identify(path) if path else None
    if launcher is None:
        raise UsageError(
            "run", f"--launcher {asked} is no launcher known here", "name mpirun, mpiexec or srun"
        )
    if launcher.kind == "srun":
        if "SLURM_JOB_ID" not in os.environ:
            raise UsageError(
                "run",
                "--launcher srun outside a SLURM allocation",
                "call it inside salloc or sbatch",
            )
        return _with_plugin(library, launcher)
    if library.kind not in (launcher.kind, "other"):
        raise _mismatch(library, launcher)
    return launcher


def _with_plugin(library: MpiLibrary, launcher: Launcher) -> Launcher:
    """Refuse an srun that cannot tell this library its ranks."""
    needed = slurm_srun.PLUGINS.get(library.kind)
    if needed is not None and needed not in slurm_srun.plugins(launcher.path):
        raise UsageError(
            "run",
            f"srun has no {needed} plugin, which {library} needs: each rank would be a job of one",
            "use --launcher mpirun (or mpiexec), or ask for the plugin",
        )
    return launcher


def _mismatch(library: MpiLibrary, launcher: Launcher) -> UsageError:
    """Say that launcher and library do not belong together."""
    return UsageError(
        "run",
        f"mpi4py is linked with {library} but {launcher} starts jobs of another library: "
        "each rank would be a job of one",
        "put the launcher of the same library first on PATH, or name it with --launcher",
    )
