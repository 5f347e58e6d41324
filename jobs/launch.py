"""Starting programs on the ranks of a job, as often as needed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Final

import click

from closeranks.jobs import mpich, openmpi, srun
from closeranks.jobs.job import Command, Job
from closeranks.jobs.lab import namespaces
from closeranks.jobs.launcher import Launcher
from closeranks.jobs.library import Library
from closeranks.jobs.poll import Poll, open_poll

_SERIES = "closeranks.jobs.bench.series"


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
            return srun.command(path, self.job, self.library, program, variables)
        build = openmpi.command if self.launcher.kind == "openmpi" else mpich.command
        return build(path, self.job, program, variables)

    def launch(
        self, program: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> int:
        """Start a program on all ranks and wait for its end.

        Parameters
        ----------
        program : sequence of str
            Program and arguments, as `closeranks.jobs.program.resolve` gives
            them.
        environment : mapping of str to str, optional
            Variables every rank gets.

        Returns
        -------
        int
            The exit status: the launcher's, 128 + n if signal n ended it; of a
            job whose ranks may die as the survivors say, see
            `closeranks.jobs.votes`.
        """
        if not self.job.faults:
            return self._execute(program, environment or {})
        with open_poll() as poll:
            status = self._execute(program, environment or {}, poll)
            return poll.judge(status, self.job.ranks)

    def _execute(
        self, program: Sequence[str], environment: Mapping[str, str], poll: Poll | None = None
    ) -> int:
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
            ends = self.launcher.kind == "openmpi"
            if poll is None:
                return execute(given, ends_by_one=ends)
            attach = partial(poll.attach, starts_all=self.job.here)
            return execute(given, attach, ends_by_one=ends)

    def _session(self) -> AbstractContextManager[Mapping[str, str]]:
        """Lend the launcher what it must share with no other launch."""
        return openmpi.session() if self.launcher.kind == "openmpi" else nullcontext({})

    def _write_hostfile(self) -> None:
        """Write the host file of a job whose nodes only we can reach."""
        if self.job.reach is None:
            return
        write = openmpi.hostfile if self.launcher.kind == "openmpi" else mpich.hostfile
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


#: An interrupt from the keyboard reaches the launcher by itself.  If Open MPI's is still there
#: after so many seconds, we alone were meant; two within five, and it leaves its ranks behind.
_INTERRUPT_S: Final = 6.0


def execute(
    command: Command,
    started: Callable[[subprocess.Popen[bytes]], object] = id,
    *,
    ends_by_one: bool = False,
) -> int:
    """Run a command to its end; signals sent to us go to it as well.

    It is told to end where this process is killed.

    Parameters
    ----------
    command : Command
        What to run.
    started : callable, optional
        Is given its process.
    ends_by_one : bool, optional
        Whether one interrupt ends it: else it has had none, and is ended then.

    Returns
    -------
    int
        Its exit status, 128 + n if signal n ended it.
    """
    child = subprocess.Popen(
        command.words,
        env={**os.environ, **command.environment},
        preexec_fn=partial(_end_with, os.getpid()),
    )
    started(child)
    forwarded = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        child.send_signal(number)

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.setitimer(signal.ITIMER_REAL, _INTERRUPT_S)

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        child.terminate()

    before = {number: signal.signal(number, forward) for number in forwarded}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, end)
    before[signal.SIGINT] = signal.signal(
        signal.SIGINT, interrupt if ends_by_one else signal.SIG_IGN
    )
    try:
        status = child.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _end_with(parent: int) -> None:
    """Let this child end in order when its parent has ended, or has already."""
    with suppress(OSError):  # it runs nevertheless
        namespaces.die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
