"""A campaign: episode after episode until the time is over."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import psutil

from closeranks.comms.liveness import watchdog
from closeranks.errors import UsageError
from closeranks.jobs.bench.churn.judge import ChurnVerdict, judge
from closeranks.jobs.bench.churn.member import HANG_S, WHERE
from closeranks.jobs.bench.churn.model import FEWEST, Episode, Model, episode
from closeranks.jobs.bench.churn.record import read
from closeranks.jobs.bench.measuring.number_text import aligned
from closeranks.jobs.bench.measuring.timing import NO_BANDWIDTH, Timing
from closeranks.jobs.launch.run_command import prepare

Row = dict[str, Any]

#: An episode that takes longer hangs; its processes have said where before.
_LIMIT_S: Final = 120.0
#: How long processes may take to write where they are.
_WRITING_S: Final = 1.0
#: What a process of an episode runs.
_MEMBER: Final = "closeranks.jobs.bench.churn.member"
#: How often the model plays before the first episode.
_MODELLED: Final = 1000
_COLUMNS: Final = {"seed": 6, "steps": 7, "kills": 7, "stops": 7, "joins": 7, "recoveries": 12,
                   "slowest_s": 11, "seconds": 9, "unplanned": 11, "hangs": 7,
                   "status": 8, "wrong": 7}  # fmt: skip
#: What a row must not have: the last is the model's, before the first episode.
_FAULTS: Final = ("wrong", "hangs", "unplanned", "status", "model_wrong")


def campaign(minutes: float, members: int, spares: int, seed: int) -> Iterator[Row]:
    """Run episodes for some minutes, the last one to its end.

    Parameters
    ----------
    minutes : float
        How long.
    members, spares : int
        Ranks of each episode.
    seed : int
        Of the first; each has the next one.

    Yields
    ------
    dict
        A row for each episode.
    """
    end_s = time.monotonic() + 60 * minutes
    for number in count(seed):
        yield _row(episode(number, members, spares))
        if time.monotonic() >= end_s:
            return


def modelled(members: int, spares: int, seed: int) -> tuple[int, float, list[str]]:
    """Let the model play episodes, and judge them.

    Parameters
    ----------
    members, spares, seed : int
        As for `campaign`.

    Returns
    -------
    episodes : int
        How many.
    seconds : float
        How long they took, judge included.
    wrong : list of str
        Findings of the judge.
    """
    began_s, wrong = time.monotonic(), list[str]()
    for number in range(seed, seed + _MODELLED):
        plan = episode(number, members, spares)
        wrong += judge(plan, Model(plan, number).run()).wrong
    return _MODELLED, time.monotonic() - began_s, wrong


def head() -> str:
    """Write the line above the rows."""
    return "# " + aligned(_COLUMNS, _COLUMNS.values())


def as_line(row: Row) -> str:
    """Write a row as text.

    Parameters
    ----------
    row : dict
        Of `campaign`.

    Returns
    -------
    str
        One line.
    """
    words = {name: f"{row[name]:.2f}" if isinstance(row[name], float) else row[name]
             for name in _COLUMNS}  # fmt: skip
    words["status"] = "ended" if row["status"] is None else row["status"]
    return "  " + aligned(words.values(), _COLUMNS.values())


def total(rows: list[Row]) -> str:
    """Sum up in words.

    Parameters
    ----------
    rows : list of dict
        Of `campaign`; at least one.

    Returns
    -------
    str
        One line.
    """
    sums = {name: sum(row[name] for row in rows)
            for name in ("kills", "stops", "joins", "unplanned", "hangs", "wrong")}  # fmt: skip
    failed = sum(row["status"] != 0 for row in rows)
    events = sums["kills"] + sums["stops"] + sums["joins"]
    kib, files = (seen(rows, f"{what}_a_recovery") for what in ("kib", "files"))
    grew = "too few recoveries to see whether memory or files grow"
    if kib:
        grew = f"memory {median(kib):+.0f} KiB, files {max(files):+.2f} a recovery"
    return (
        f"{len(rows)} episodes, {events} events: {sums['kills']} kills, {sums['stops']} stops,"
        f" {sums['joins']} joins; {sums['wrong']} wrong, {sums['hangs']} hangs,"
        f" {sums['unplanned']} unplanned deaths, {failed} with another status than 0; {grew}"
    )


def is_right(row: Row) -> bool:
    """Say whether an episode was as it must be, and the model before it.

    Parameters
    ----------
    row : dict
        Of `report`, or any other with ``wrong``.

    Returns
    -------
    bool
        False if a sum was wrong, a job hung or ended with another status than 0,
        or somebody died without an event.
    """
    return not any(row.get(name) for name in _FAULTS)


def seen(rows: list[Row], what: str) -> list[float]:
    """Give what was measured, of the episodes in which it was.

    Parameters
    ----------
    rows : list of dict
        Of `campaign`.
    what : str
        Key of theirs.

    Returns
    -------
    list of float
        Without those that are None.
    """
    return [row[what] for row in rows if row[what] is not None]


def _row(plan: Episode) -> Row:
    """Run an episode, have it judged, and keep what it left if it was not right."""
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="closeranks-churn-"))
    status = _run(plan, folder)
    verdict = judge(plan, read(folder))
    hangs = int(status is None or verdict.unfinished > 0 or verdict.slowest_s > HANG_S)
    row = _as_row(plan, verdict, time.monotonic() - began_s, hangs=hangs)
    row["status"] = status
    if is_right(row):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    else:
        counted = [f"{name} {row[name]}" for name in _FAULTS[1:] if row.get(name)]
        words = "; ".join([*verdict.wrong[:3], *counted])
        sys.stderr.write(f"closeranks: seed {plan.seed}: {words}; {folder}\n")
    return row


def _run(plan: Episode, folder: Path) -> int | None:
    """Start the processes; gives the job's exit status, None if it had to be ended."""
    numbers = [str(number) for number in (plan.seed, plan.members, plan.spares)]
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", str(plan.members)]
    command += ["--spares", str(plan.spares), "--", sys.executable, "-m"]
    command += [_MEMBER, str(folder), *numbers]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            process.wait(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            _note(folder)
            _end(process)
            return None
        except BaseException:
            _end(process)
            sys.stderr.write(f"closeranks: seed {plan.seed}: not over; {folder}\n")
            raise
    return process.returncode


def _note(folder: Path) -> None:
    """Note what the processes of a hung episode do; they write where they are."""
    lines = list[str]()
    for one in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is another user's
            words = one.cmdline()
            if str(folder) in words or watchdog.__file__ in words:
                lines.append(f"{one.pid} {one.status()} {' '.join(words)}\n")
            if str(folder) in words and words[1:3] == ["-m", _MEMBER]:
                one.send_signal(WHERE)
    (folder / "processes.txt").write_text("".join(lines), encoding="utf-8")
    time.sleep(_WRITING_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launch: it hands the signal on, and what it has started may be deaf."""
    started = list[psutil.Process]()
    with suppress(psutil.NoSuchProcess):  # Ctrl-C has ended it too
        started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for one in started:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def _as_row(plan: Episode, verdict: ChurnVerdict, seconds: float, *, hangs: int) -> Row:
    facts = verdict._asdict()
    facts["wrong"] = len(verdict.wrong)
    del facts["taken_s"], facts["process_mean_s"]
    taken_s = verdict.taken_s or (np.nan,)
    timing = Timing(np.array(taken_s), verdict.process_mean_s, len(verdict.taken_s), False)
    times = {name: us if verdict.taken_s else None for name, us in timing.columns().items()}
    return {
        "name": "churn",
        "algorithm": "auto",
        "ranks": plan.members,
        "nodes": None,
        "dtype": "int64",
        "op": "sum",
        "size_bytes": None,
        "iterations": verdict.steps,
        **times,
        **NO_BANDWIDTH,
        "spares": plan.spares,
        "seed": plan.seed,
        "seconds": seconds,
        "hangs": hangs,
        **facts,
    }


def report(
    minutes: float, members: int, spares: int, seed: int, write: Callable[[str], object]
) -> Iterator[Row]:
    """Run the model and a campaign, and write what comes of it.

    SIGTERM interrupts it as Ctrl-C does: the episode's processes are ended.

    Parameters
    ----------
    minutes : float
        How long.
    members, spares, seed : int
        As for `campaign`.
    write : callable
        Takes a line.

    Yields
    ------
    dict
        A row for each episode; ``model_wrong`` is what the model got wrong.

    Raises
    ------
    UsageError
        If nobody may be lost.
    Unavailable
        If the library or its launcher cannot go on without ranks that died.
    """
    if members + spares <= FEWEST:
        who = f"{members} members and {spares} spares"
        raise UsageError("bench churn", f"{who}: nobody may be lost",
                         f"--members {FEWEST + 1}, or --spares 1")  # fmt: skip
    launch = prepare(members + spares, (sys.executable,), faults=True)
    played, seconds, wrong = modelled(members, spares, seed)
    write(f"# model: {played} episodes, {played / seconds:.0f} a second, {len(wrong)} wrong")
    for words in wrong[:5]:
        write(f"#   {words}")
    write(head())
    rows = list[Row]()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for row in campaign(minutes, members, spares, seed):
            rows.append(row | {"model_wrong": len(wrong), "nodes": 1 if launch.job.here else None})
            write(as_line(row))
            yield rows[-1]
    finally:
        signal.signal(signal.SIGTERM, before)
        if rows:
            write(f"# {total(rows)}")
