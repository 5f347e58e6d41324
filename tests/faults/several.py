"""Ask several questions in one job, each of the first ranks that are left.

    closeranks run --faults -n 9 -- python -m tests.faults.several '[QUESTION, ...]'

A question is a JSON object: its "name", the "program" in this folder with its "words",
how many "ranks" run it, of which the last "spares" wait, and the "variables" that it adds
to the environment.  `init` opens a communicator of these ranks, while the others sleep.
A rank that a question has killed takes part in no later one.  Each line that a program
prints begins with the name of the question.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

import closeranks as cr
from closeranks.comms.exit import exit_report
from closeranks.comms.liveness.agreement import agree
from closeranks.comms.mpi import ulfm

#: How often a rank looks whether the next question has come, in seconds.
LOOK_S = 0.05
#: Tells a new process which question it was started for.
ASKED = "FAULTS_ASKED"
#: What the programs have made: messages of a question may still be written there.
KEPT: list[object] = []
#: Is among them where this rank has given up a question.
GAVE_UP = "gave up"


class Named(io.TextIOBase):
    """Standard output, whole lines at a time, with a name before each.

    Parameters
    ----------
    name : str
        Of the question.
    """

    def __init__(self, name: str) -> None:
        self._name, self._begun = name, ""

    def write(self, text: str) -> int:
        """Write the lines that are whole."""
        *lines, self._begun = (self._begun + text).split("\n")
        os.write(1, "".join(f"{self._name}| {line}\n" for line in lines).encode())
        return len(text)


def sleep_until(is_over: Callable[[], bool]) -> None:
    """Leave the cores to those who are asked."""
    while not is_over():
        time.sleep(LOOK_S)


def left(everybody: MPI.Intracomm, ranks: int) -> tuple[MPI.Intracomm, MPI.Intracomm]:
    """Meet the ranks that are left; gives them all, and those of a question or the others."""
    if not ulfm.is_on():
        sleep_until(everybody.Ibarrier().Test)
        return everybody, parted(everybody, ranks)
    agree(everybody, 1, waits=sleep_until)
    while True:
        everybody = ulfm.shrink(everybody)
        try:
            part = parted(everybody, ranks)
        except MPI.Exception:
            part = None
        made, died = agree(everybody, int(part is not None))
        if made and not died and part is not None:
            return everybody, part


def parted(everybody: MPI.Intracomm, ranks: int) -> MPI.Intracomm:
    """Give the communicator of a question, or of the others."""
    return MPI.Intracomm(everybody.Split(int(everybody.rank >= ranks), everybody.rank))


def initialize(
    real: Callable[..., cr.Communicator],
    part: MPI.Intracomm,
    question: Mapping[str, Any],
    **options: Any,
) -> cr.Communicator:
    """Open the communicator of a question, as that of all ranks would be."""
    if options.get("recruits") is None:
        options["recruits"] = question["recruits"] and options.get("on_failure") == "replace"
    return real(part, spares=question["spares"], **options)


@contextmanager
def surroundings(question: dict[str, Any], part: MPI.Intracomm) -> Iterator[str]:
    """Let a program find what a job of its own would give it; gives its path."""
    name, spares = question["name"], question["spares"]
    program = str(Path(__file__).with_name(question["program"]))
    before, variables, folder = (cr.init, sys.argv), dict(os.environ), Path.cwd()
    os.environ |= question["variables"] | {ASKED: name}
    os.environ |= {"CLOSERANKS_SPARES": str(spares)} if spares else {}
    cr.init = partial(initialize, cr.init, part, question)
    sys.argv = [program, *question["words"]]
    try:
        with redirect_stdout(Named(name)):
            yield program
    finally:
        cr.init, sys.argv = before
        os.environ.clear()
        os.environ |= variables
        os.chdir(folder)


def ask(question: dict[str, Any], part: MPI.Intracomm) -> None:
    """Run a program; a rank on which it fails ends, for others may wait for it."""
    with surroundings(question, part) as program:
        try:
            KEPT.append(runpy.run_path(program, run_name="__main__"))
        except SystemExit as end:  # a spare that nobody needed
            KEPT.append(end)
        except BaseException:
            print(f"failed: {traceback.format_exc()}", flush=True)  # noqa: T201
            os.kill(os.getpid(), signal.SIGKILL)
    faulthandler.cancel_dump_traceback_later()
    if ulfm.leaves():
        _end_or_stay(stays=question["stays"])


def _end_or_stay(*, stays: bool) -> None:
    """End a rank that has given up, for which others may wait; or let it only leave later."""
    if not stays:
        os.kill(os.getpid(), signal.SIGKILL)
    KEPT.append(GAVE_UP)
    ulfm._Exit.leaves = False


def main() -> None:
    """Ask one question after the other."""
    everybody = MPI.COMM_WORLD
    questions = {question["name"]: question for question in json.loads(sys.argv[1])}
    if "CLOSERANKS_JOINS" in os.environ:
        ask(questions[os.environ[ASKED]], everybody)
        return
    exit_report.note_processes(everybody.size, 0)
    exit_report.enter_world(everybody.rank, 0, 0, everybody.size)  # all speak for one group
    for question in questions.values():
        ranks = question["ranks"]
        everybody, part = left(everybody, ranks)
        if everybody.size < ranks and everybody.rank == 0:
            print(f"{question['name']}| only {everybody.size} ranks are left", flush=True)  # noqa: T201
        elif everybody.rank < ranks <= everybody.size:
            ask(question, part)
    if ulfm.is_on():
        everybody, _ = left(everybody, everybody.size)  # whose end would disturb the last one
        exit_report.enter_world(everybody.rank, 0)  # the first ones say how it ended
    if GAVE_UP in KEPT:
        ulfm.leave()
    elif len(questions) > 1 and any(question["recruits"] for question in questions.values()):
        ulfm.leave(0)  # Open MPI 5.0.11 crashes in the end where several have joined and gone


if __name__ == "__main__":
    main()
