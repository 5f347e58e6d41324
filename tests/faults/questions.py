"""Questions that tests ask of one job together, see ``several.py``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.conftest import Launch, Run

_F = TypeVar("_F", bound=Callable[..., object])

#: A job has at most so many ranks, of which each takes a processor second.
MOST_RANKS = 32
#: How long a job may take, and each of its questions, in seconds.
BEGIN_S, EACH_S = 60, 15


_TOLD = ("program", "words", "ranks", "spares", "stays", "recruits")


class Question(NamedTuple):
    """What one run of a program asks.

    Attributes
    ----------
    program : str
        In this folder.
    words : tuple of str
        Its arguments.
    ranks, dies : int
        How many ranks run it, spares too, and how many of them are dead in the end,
        or have given up alone.
    spares : int
        How many of them wait.
    stays : bool
        Whether all that live give up together, so that nobody waits for their end.
    recruits : bool
        Whether new processes are started where no spare is left.
    job : str
        "faults": one that loses ranks; "mpirun": one that loses none, of any library;
        "serialized": so, and no thread answers while its rank sleeps; "alone": one that
        loses ranks, of this question.
    variables : tuple of (str, str)
        What is added to the environment.
    """

    program: str
    words: tuple[str, ...] = ()
    ranks: int = 4
    dies: int = 0
    spares: int = 0
    stays: bool = False
    recruits: bool = False
    job: str = "faults"
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """What tells it apart from others."""
        more = [f"spares={self.spares}"] if self.spares else []
        more += [f"{name}={value}" for name, value in self.variables]
        return " ".join([self.program.removesuffix(".py"), *self.words, *more])

    def told(self) -> dict[str, Any]:
        """Write it for ``several.py``."""
        found = {name: getattr(self, name) for name in _TOLD}
        return found | {"name": self.name, "variables": dict(self.variables)}


class Answer(NamedTuple):
    """What a job has said.

    Attributes
    ----------
    text : str
        The lines of one question.
    status : int
        Of the job, which is not 0 if ranks have given up.
    whole : str
        All that the job has written, to be shown if something is wrong.
    """

    text: str
    status: int
    whole: str


#: What tests ask: questions, or how to make them of a test's parameters.
ASKED: dict[Callable[..., object], tuple[Question | Callable[..., Question], ...]] = {}


def asks(*questions: Question | Callable[..., Question]) -> Callable[[_F], _F]:
    """Let a test have `answers`, in this order; a function gets the test's parameters."""

    def noted(test: _F) -> _F:
        ASKED[test] = questions
        return test

    return noted


def asked_by(item: pytest.Item) -> list[Question]:
    """Give what a test asks, with its parameters."""
    callspec = getattr(item, "callspec", None)
    given = callspec.params if callspec else {}
    asked = ASKED.get(item.function, ()) if isinstance(item, pytest.Function) else ()
    return [one if isinstance(one, Question) else one(**given) for one in asked]


def batches(questions: Iterable[Question]) -> list[list[Question]]:
    """Distribute questions among jobs."""
    made: dict[tuple[object, ...], list[list[Question]]] = {}
    for one in dict.fromkeys(questions):
        of_kind = made.setdefault((one.job, one.stays, one.recruits), [[]])
        if of_kind[-1] and (one.job == "alone" or size_of([*of_kind[-1], one]) > MOST_RANKS):
            of_kind.append([])
        of_kind[-1].append(one)
    return [sorted(batch, key=lambda one: one.dies) for some in made.values() for batch in some]


def size_of(batch: Sequence[Question]) -> int:
    """Say how many ranks have enough left for the last question."""
    gone, most = 0, 0
    for one in sorted(batch, key=lambda one: one.dies):
        most, gone = max(most, gone + one.ranks), gone + one.dies
    return most


def _answered(question: Question, status: int, whole: str) -> Answer:
    """Take what belongs to a question."""
    start = f"{question.name}| "
    lines = [line.removeprefix(start) for line in whole.splitlines() if line.startswith(start)]
    return Answer("\n".join([*lines, ""]), status, whole)


class Jobs:
    """The jobs of one run of the tests, each started when its first answer is wanted.

    Parameters
    ----------
    items : sequence of pytest.Item
        All tests that are run.
    launch, mpirun : callable
        Start a command, or a program on ranks of this library.
    """

    def __init__(self, items: Sequence[pytest.Item], launch: Launch, mpirun: Run) -> None:
        self._launch, self._mpirun = launch, mpirun
        self._batches = batches(one for item in items for one in asked_by(item))
        self._said: dict[int, tuple[int, str]] = {}

    def answer(self, question: Question) -> Answer:
        """Give what came of a question."""
        number = next(at for at, batch in enumerate(self._batches) if question in batch)
        if number not in self._said:
            try:
                self._said[number] = self._run(self._batches[number])
            except pytest.fail.Exception as error:  # it has not ended: some may have answers
                self._said[number] = -1, str(error)
        found = _answered(question, *self._said[number])
        is_asked = found.text.strip() and not found.text.startswith("only ")
        if is_asked or len(self._batches[number]) == 1:
            return found
        return _answered(question, *self._run([question]))  # another one has ended the job

    def _run(self, batch: Sequence[Question]) -> tuple[int, str]:
        """Start a job, and wait for its end."""
        ranks, limit_s = size_of(batch), BEGIN_S + EACH_S * len(batch)
        words = ["-m", "tests.faults.several", json.dumps([one.told() for one in batch])]
        if batch[0].job in {"mpirun", "serialized"}:
            with pytest.MonkeyPatch.context() as patch:
                if batch[0].job == "serialized":
                    patch.setenv("MPI4PY_RC_THREAD_LEVEL", "serialized")
                done = self._mpirun(ranks, *words, timeout_s=limit_s)
        else:
            start = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", str(ranks)]
            done = self._launch([*start, "--", sys.executable, *words], timeout_s=limit_s)
        return done.returncode, done.stdout
