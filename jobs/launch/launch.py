"""Starting programs on the ranks of a job, as often as needed."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import click

from closeranks.jobs.launch import mpich_mpiexec, openmpi_mpirun, slurm_srun
from closeranks.jobs.launch.execution import End, execute
from closeranks.jobs.launch.exit_report_listener import Poll, open_poll
from closeranks.jobs.launch.job_description import Command, Job
from closeranks.jobs.launch.launcher_choice import Launcher
from closeranks.jobs.launch.mpi_library import Library

_SERIES = "closeranks.jobs.bench.best_series"


@dataclass(frozen=True)
class Launch:
    """A job, a library and the launcher for it; starts any number of programs.

    Parameters
    ----------
    job : Job
        How many ranks, and where.
    library : Library
        What the programs are linked with.
    launcher : Launcher
        What starts them.
    announce : bool, optional
        Write the full command on standard error before it is executed.
    """

    job: Job
    library: Library
    launcher: Launcher
    announce: bool = True

    def command(
        self, program: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> Command:
        """Write the command for a program.

        Parameters
        ----------
        program : sequence of str
            Program and arguments.
        environment : mapping of str to str, optional
            Variables every rank gets.

        Returns
        -------
        Command
            Words and environment.
        """
        path, variables = self.launcher.path, environment or {}
        if self.launcher.kind == "srun":
            return slurm_srun.command(path, self.job, self.library, program, variables)
        build = openmpi_mpirun.command if self.launcher.kind == "openmpi" else mpich_mpiexec.command
        return build(path, self.job, program, variables)

    def launch(
        self, program: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> int:
        """Start a program on all ranks and wait for its end.

        Parameters
        ----------
        program : sequence of str
            Program and arguments, as `closeranks.jobs.launch.program.resolve` gives
            them.
        environment : mapping of str to str, optional
            Variables every rank gets.

        Returns
        -------
        int
            The exit status: the launcher's, 128 + n if signal n ended it, or has
            asked us to end it; of a job whose ranks may die as the survivors say,
            see `closeranks.jobs.launch.exit_reports`.
        """
        if not self.job.faults:
            return self._execute(program, environment or {}).status
        with open_poll(here=self.job.here) as poll:
            end = self._execute(program, environment or {}, poll)
            return end.status if end.asked else poll.judge(end.status, self.job.ranks)

    def _execute(
        self, program: Sequence[str], environment: Mapping[str, str], poll: Poll | None = None
    ) -> End:
        """Start the launcher, once, and wait for its end."""
        command = self.command(program, environment=environment)
        self._write_hostfile()
        if self.announce:
            settings = [f"{name}={shlex.quote(v)}" for name, v in command.environment.items()]
            click.echo(" ".join([*settings, shlex.join(command.words)]), err=True)
        if poll is not None:  # what is shown can be pasted, when nobody listens any more
            command = self.command(program, environment={**environment, **poll.environment})
        with self._session() as own:
            given = Command(command.words, {**command.environment, **own})
            if poll is None:
                return execute(given, kind=self.launcher.kind)
            attach = partial(poll.attach, starts_all=self.job.here)
            return execute(given, attach, kind=self.launcher.kind)

    def _session(self) -> AbstractContextManager[Mapping[str, str]]:
        """Lend the launcher what it must share with no other launch."""
        return openmpi_mpirun.session() if self.launcher.kind == "openmpi" else nullcontext({})

    def _write_hostfile(self) -> None:
        """Write the host file of a job whose nodes only we can reach."""
        if self.job.reach is None:
            return
        write = (
            openmpi_mpirun.hostfile if self.launcher.kind == "openmpi" else mpich_mpiexec.hostfile
        )
        with open(self.job.reach.hostfile, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(write(self.job))


def launch_all(
    launch: Launch, program: Sequence[str], settings: Mapping[str, str] | None = None
) -> int:
    """Start a program, or the series of programs it stands for.

    The bench suite compares settings of the library that can only be chosen
    at start-up; it then asks for several launches, one after another.

    Parameters
    ----------
    launch : Launch
        How to start.
    program : sequence of str
        Program and arguments.
    settings : mapping of str to str, optional
        Variables that every rank gets.

    Returns
    -------
    int
        The exit status of the last launch, or of the first one that failed:
        somebody may want the whole series to end.
    """
    status = 0
    for words, environment in _series(program):
        status = launch.launch(words, environment={**(settings or {}), **environment})
        if status:
            break
    return status


def _series(program: Sequence[str]) -> Sequence[tuple[Sequence[str], Mapping[str, str]]]:
    """Ask the bench suite how many launches a program stands for."""
    single = [(program, dict[str, str]())]
    if "closeranks" not in program or importlib.util.find_spec(_SERIES) is None:
        return single
    series: Callable[[list[str]], Sequence[tuple[list[str], Mapping[str, str]]]]
    series = importlib.import_module(_SERIES).series
    return series(list(program)) or single
