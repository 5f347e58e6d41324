"""Two jobs that live at once never have one checkpoint; who is started again has what was left."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from closeranks.comms.shm.shared_folder import folder

PROGRAM = str(Path(__file__).parent / "two_jobs.py")
RANKS = 2
Run = Callable[..., "subprocess.CompletedProcess[str]"]
pytestmark = pytest.mark.timeout(120)


class Jobs:
    """Jobs that are started by one command, and what they have said.

    Parameters
    ----------
    mpirun : callable
        Starts one, and waits for its end.
    words : Path
        Where they leave word.
    """

    def __init__(
        self, mpirun: Run, words: Path, pool: ThreadPoolExecutor, patch: pytest.MonkeyPatch
    ) -> None:
        self._mpirun, self.words, self._pool, self._patch = mpirun, words, pool, patch
        self.name = f"two-{secrets.token_hex(6)}"

    def start(
        self, who: str, *more: str, variables: Mapping[str, str] | None = None, keep: bool = False
    ) -> Future[Any]:
        """Start a job that gives itself variables."""
        told: dict[str, Any] = {"who": who, "folder": str(self.words), "set": dict(variables or {})}
        self._patch.setenv("TWO_JOBS", json.dumps(told | ({"keep": 1} if keep else {})))
        begun = Future[None]()

        def run() -> Any:
            begun.set_result(None)
            return self._mpirun(RANKS, PROGRAM, self.name, *more)

        done = self._pool.submit(run)
        begun.result(10)
        time.sleep(0.2)  # until it has read its environment
        return done

    def saved(self, who: str) -> list[int]:
        """Wait until all ranks of a job have saved; gives the processes."""
        paths = [self.words / f"{who}-{rank}" for rank in range(RANKS)]
        end = time.monotonic() + 30
        while not all(path.exists() and path.read_text() for path in paths):
            assert time.monotonic() < end, f"{who} has not saved"
            time.sleep(0.02)
        return [int(path.read_text()) for path in paths]

    def go(self) -> None:
        """Let all go."""
        (self.words / "go").touch()

    def left(self) -> list[str]:
        """Name the files that are there."""
        return sorted(path.name for path in folder().iterdir() if self.name in path.name)


@pytest.fixture
def jobs(mpirun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Jobs of a name of their own; they are let go, and nothing of them stays."""
    monkeypatch.delenv("CLOSERANKS_RUN", raising=False)
    with ThreadPoolExecutor(3) as pool:
        made = Jobs(mpirun, tmp_path, pool, monkeypatch)
        try:
            yield made
        finally:
            made.go()
    for name in made.left():
        (folder() / name).unlink(missing_ok=True)


def refusals(said: str, who: str) -> list[str]:
    """Give what each rank of a job was told when it was refused."""
    return re.findall(rf"{who}: refused, (.*)", said)


@pytest.mark.parametrize("variables", [
    pytest.param([{}, {}], id="same-command"),
    pytest.param([{"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": str(step)} for step in (0, 1)],
                 id="steps"),
])  # fmt: skip
def test_who_comes_second_is_refused(jobs: Jobs, variables: list[dict[str, str]]) -> None:
    first = jobs.start("a", variables=variables[0])
    processes = jobs.saved("a")
    second = jobs.start("b", variables=variables[1]).result(60)
    assert second.returncode == 0, second.stdout
    told = refusals(second.stdout, "b")
    assert len(told) == RANKS, second.stdout
    assert len(set(told)) == 1
    (text,) = set(told)
    assert f"is open elsewhere: host {socket.gethostname()}, pid " in text
    assert int(text.split("pid ")[1].split(",")[0]) in processes
    assert re.search(r"started 2\d{3}-\d\d-\d\d ", text)
    assert ("SLURM step 4711.0" in text) == ("SLURM_JOB_ID" in variables[0])
    assert "another name, or another CLOSERANKS_RUN" in text
    jobs.go()
    done = first.result(60)
    assert done.stdout.count("a: has step 1") == RANKS, done.stdout
    assert jobs.left() == []


def test_of_two_that_come_at_once_one_has_it(jobs: Jobs) -> None:
    both = {"a": jobs.start("a"), "b": jobs.start("b")}
    end = time.monotonic() + 40
    while not any(one.done() for one in both.values()):
        assert time.monotonic() < end, "nobody was refused"
        time.sleep(0.05)
    (loser,) = [who for who, one in both.items() if one.done()]
    winner = "ab".replace(loser, "")
    assert len(refusals(both[loser].result().stdout, loser)) == RANKS
    jobs.go()
    done = both[winner].result(60)
    assert done.stdout.count(f"{winner}: has step 1") == RANKS, done.stdout


def test_what_is_told_apart_lives_side_by_side(jobs: Jobs) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    told = {"a": {"CLOSERANKS_RUN": "x"}, "b": job, "c": {**job, "CLOSERANKS_RUN": "x"}}
    every = {}
    for who, own in told.items():
        every[who] = jobs.start(who, variables=own)
        jobs.saved(who)
    jobs.go()
    for who, one in every.items():
        done = one.result(60)
        assert done.stdout.count(f"{who}: nothing") == RANKS, done.stdout
        assert done.stdout.count(f"{who}: has step 1") == RANKS, done.stdout
    assert jobs.left() == []


def test_another_command_is_a_stranger(jobs: Jobs) -> None:
    jobs.go()
    jobs.start("a", keep=True).result(60)
    other = jobs.start("b", "more").result(60)
    assert other.stdout.count("b: nothing") == RANKS, other.stdout
    again = jobs.start("c").result(60)
    assert again.stdout.count("c: restored 1 of a") == RANKS, again.stdout


@pytest.mark.parametrize("variables", [
    pytest.param([{}, {}], id="same-command"),
    pytest.param([{"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": str(step)} for step in (0, 1)],
                 id="steps"),
])  # fmt: skip
def test_who_is_started_again_has_what_the_killed_have_left(
    jobs: Jobs, variables: list[dict[str, str]]
) -> None:
    first = jobs.start("a", variables=variables[0])
    ranks = [psutil.Process(pid) for pid in jobs.saved("a")]
    family = {parent for rank in ranks for parent in rank.parents()
              if parent.name().startswith(("mpi", "prte", "hydra"))}  # fmt: skip
    for process in [*family, *ranks]:
        with suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)
    again = jobs.start("b", variables=variables[1])  # at once
    jobs.saved("b")
    jobs.go()
    done = again.result(60)
    assert done.stdout.count("b: restored 1 of a") == RANKS, done.stdout
    assert done.stdout.count("b: has step 2") == RANKS, done.stdout
    first.result(60)
    assert jobs.left() == []
