"""Launches of the fuzzer's ranks: with a limit, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    """How a launch ended.

    Attributes
    ----------
    what : str
        "" where all went well, else "wrong", "raised", "taken", "hang" or "died".
    detail : str
        What the first rank that found something said, or the stacks.
    sequence : int
        Number of the sequence that it was in.
    index : int
        How many sequences had been done before in this launch.
    step : int
        Number of the step that failed, where that is known; else a large number.
    done : dict
        Counts, where it came to its end.
    """

    what: str = ""
    detail: str = ""
    sequence: int = 0
    index: int = 0
    step: int = 1 << 30
    done: dict[str, Any] = field(default_factory=dict)


def launch(job: dict[str, Any], ranks: int, *, limit_s: float, package: Path = ROOT) -> Outcome:
    """Run ``job`` on ranks of this machine, to its end or to the end of its time.

    Parameters
    ----------
    job : dict
        ``sequences``, or ``seed``, ``first`` and ``seconds``.
    ranks : int
        How many.
    limit_s : float
        Seconds after which all is ended.
    package : Path
        Where closeranks is imported from.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        place = Path(folder)
        (place / "job.json").write_text(json.dumps(job))
        text, status = _run(place, ranks, limit_s, package)
        return _outcome(place, ranks, text, status)


def _run(place: Path, ranks: int, limit_s: float, package: Path) -> tuple[str, int | None]:
    """Run the ranks; status None where they were ended."""
    command = [sys.executable, "-m", "closeranks", "run", "-n", str(ranks), "--"]
    command += [sys.executable, "-m", "tests.fuzz.ranks", str(place)]
    path = os.pathsep.join([str(package), str(ROOT)])
    with (place / "out.txt").open("w+") as out:
        process = subprocess.Popen(
            command,
            cwd=package,
            env=os.environ
            | {"PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", "CLOSERANKS_REMEMBER": "0"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
        except BaseException:
            _end(process)
            raise
        out.seek(0)
        return out.read(), status


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launch with all it started, each process by its id."""
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    os.killpg(process.pid, signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=5)
    for member in alive:
        if member.is_running():
            member.kill()
    process.wait()


def _outcome(place: Path, ranks: int, text: str, status: int | None) -> Outcome:
    """Tell how a launch ended by what it left."""
    made = Outcome()
    if (place / "at.json").exists():
        made.sequence, made.index = json.loads((place / "at.json").read_text())
    if (place / "done.json").exists():
        made.done = json.loads((place / "done.json").read_text())
    if (place / "failure.json").exists():
        failures = json.loads((place / "failure.json").read_text())
        rank, first = min(
            ((rank, one) for rank, one in enumerate(failures) if one),
            key=lambda pair: pair[1]["step"],
        )
        made.what = first["what"].split()[-1]
        made.step = first["step"]
        made.detail = f"rank {rank}, step {first['step']}: {first['what']}: {first['detail']}"
    elif status != 0 or not made.done:
        traces = [place / f"rank{rank}.txt" for rank in range(ranks)]
        told_by = {rank: path.read_text() for rank, path in enumerate(traces) if path.exists()}
        stacks = "\n".join(f"rank {rank}: {one[:6000]}" for rank, one in told_by.items())
        made.what = "hang" if status is None or "Timeout (" in stacks else "died"
        told = re.search(r"step (\d+): (wrong|taken|.*raised): ", stacks)
        if told:  # what a rank met before it left the others waiting
            made.what, made.step = told[2].split()[-1], int(told[1])
        made.detail = f"status {status}\n{stacks}\n{text[-3000:]}"
    return made
