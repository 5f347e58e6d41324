"""Programs started on the ranks of a job, as often as needed.

`Launch` starts them.  `execute` runs one launcher to its end, and passes on
signals that ask the job to end.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Final, NamedTuple

import click

from closeranks.jobs.launch import linux_namespaces, mpich_mpiexec, openmpi_mpirun, slurm_srun
from closeranks.jobs.launch.exit_reports import ExitReportListener, open_poll
from closeranks.jobs.launch.job_description import Command, Job
from closeranks.jobs.launch.launcher_choice import Launcher
from closeranks.jobs.launch.mpi_library import MpiLibrary

#: What asks a job to end, and what its launcher is merely told.
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED: Final = (signal.SIGUSR1, signal.SIGUSR2)
#: What says that the same request came twice, such as to a process and to its group: seconds.
_SAME_S: Final = 1.0
#: How long the launcher's end can go unseen where another thread took the news, in seconds.
_LOOK_S: Final = 1.0
#: Where the kernel itself sends a signal, which is to all that a terminal has in front.
_BY_KERNEL: Final = 128
#: A launcher that has ended a job on request gives 1 (Open MPI's), or 255 (Hydra).
_NO_PROGRAMS: Final = (1, 255)


class End(NamedTuple):
    """How a launcher has ended.

    Attributes
    ----------
    status : int
        Its exit status, 128 + n if signal n ended it; where we were asked to end
        the job, and it has not ended well, 128 + n of that signal.
    asked : bool
        Whether that is the case.
    """

    status: int
    asked: bool


def execute(
    command: Command,
    started: Callable[[subprocess.Popen[bytes]], object] = id,
    *,
    kind: str = "",
) -> End:
    """Run a command to its end; signals sent to us go to it as well.

    It is told to end where this process is killed.  Only the main thread may call.

    Parameters
    ----------
    command : Command
        Command line and environment.
    started : callable, optional
        Is given its process.
    kind : str, optional
        Its kind, see `closeranks.jobs.launch.launcher_choice.Launcher`.  Open
        MPI's launcher ends its ranks by SIGTERM on an interrupt, and forgets
        them on a second one.  So it gets no interrupt, only a SIGTERM of ours.
        Hydra passes an interrupt on to the ranks; srun only tells how the job
        is when it gets one.  Both have that of a terminal by themselves.

    Returns
    -------
    End
        How it ended.
    """
    with _Signals() as signals:
        masked = {signal.SIGINT} if kind == "openmpi" else set[signal.Signals]()
        child = subprocess.Popen(
            command.words,
            env={**os.environ, **command.environment},
            preexec_fn=partial(_begin, os.getpid(), signals.before, masked),
        )
        started(child)
        request = _Request(child, kind)
        for number, by_kernel in signals.until(lambda: child.poll() is not None):
            request.take(number, by_kernel=by_kernel)
    status = child.returncode if child.returncode >= 0 else 128 - child.returncode
    return request.end(status)


class _Request:
    """A requested job, and the part of the request that its launcher was given."""

    def __init__(self, child: subprocess.Popen[bytes], kind: str) -> None:
        self._child, self._kind = child, kind
        self._first, self._last_s = 0, float("-inf")

    def take(self, number: int, *, by_kernel: bool) -> None:
        """Pass a signal on, in the form that the launcher understands."""
        if number in _ENDING:
            self._first = self._first or number
            before_s, self._last_s = self._last_s, time.monotonic()
            if self._last_s - before_s < _SAME_S:
                return
        if number != signal.SIGINT:
            self._child.send_signal(number)
        elif self._kind == "openmpi":
            self._child.terminate()
        elif not by_kernel:
            self._child.send_signal(signal.SIGTERM if self._kind == "srun" else number)

    def end(self, status: int) -> End:
        """Say how the job has ended; Hydra gives the bare number of a signal."""
        if self._first and status in (*_NO_PROGRAMS, self._first, signal.SIGTERM, 143):
            status = 128 + self._first
        return End(status, asked=bool(self._first) and status != 0)


class _Signals:
    """Keeps signals for `until`; those that were ignored before stay ignored.

    Attributes
    ----------
    before : set of int
        Which were held up before.
    """

    def __init__(self) -> None:
        numbers = (*_ENDING, *_PASSED)
        self._heard = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]
        self._waited = {*self._heard, signal.SIGCHLD}
        self._taken: list[int] = []
        self.before: set[int] = set()

    def __enter__(self) -> _Signals:
        self.before = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._waited))
        # A thread of a library may be given one that this thread has held up.
        self._handlers = {number: signal.signal(number, self._take) for number in self._heard}
        return self

    def __exit__(self, *wrong: object) -> None:
        while signal.sigtimedwait(self._waited, 0) is not None:
            pass
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._taken.append(number)

    def until(self, over: Callable[[], bool]) -> Iterator[tuple[int, bool]]:
        """Give each signal, and whether the kernel has sent it, until all is over."""
        while not over():
            found = signal.sigtimedwait(self._waited, _LOOK_S)
            # Where a stop has outlasted the wait CPython gives what lies in memory there.
            if found is not None and found.si_signo in self._heard:
                yield found.si_signo, found.si_code == _BY_KERNEL
            while self._taken:
                yield self._taken.pop(0), False


def _begin(parent: int, before: Set[int], masked: Set[int]) -> None:
    """Let this child end in order when its parent has ended, or has already."""
    with suppress(OSError):  # it runs nevertheless
        linux_namespaces.die_with_parent(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, before | masked)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


_SERIES = "closeranks.jobs.bench.best_series"


@dataclass(frozen=True)
class Launch:
    """A job, a library and the launcher for it; starts any number of programs.

    Parameters
    ----------
    job : Job
        How many ranks, and where.
    library : MpiLibrary
        The library of the programs.
    launcher : Launcher
        Starts them.
    announce : bool, optional
        Write the full command on standard error before it is executed.
    """

    job: Job
    library: MpiLibrary
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
            The exit status: the launcher's, 128 + n if signal n ended it, or
            has asked us to end it; if ranks may die, as the survivors say, see
            `closeranks.jobs.launch.exit_reports`.
        """
        if not self.job.faults:
            return self._execute(program, environment or {}).status
        with open_poll(here=self.job.here) as poll:
            end = self._execute(program, environment or {}, poll)
            return end.status if end.asked else poll.judge(end.status, self.job.ranks)

    def _execute(
        self,
        program: Sequence[str],
        environment: Mapping[str, str],
        poll: ExitReportListener | None = None,
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
        """Write the host file of a job on nodes that only we can reach."""
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
