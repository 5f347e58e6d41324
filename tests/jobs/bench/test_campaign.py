"""The command of churn: what makes it fail, and what it leaves; no processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from closeranks.jobs.bench.churn import campaign
from closeranks.jobs.bench.churn.model import Episode, Model
from closeranks.jobs.bench.churn.record import Record, line
from closeranks.jobs.bench.command import bench
from tests.jobs.bench.keys import BASE

#: Plays an episode: takes its records, gives those that are left, and a status.
Play = Callable[[list[Record]], tuple[list[Record], int | None]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Run the command with episodes of the model: ``run(play, minutes=1e-9)``."""
    here = SimpleNamespace(job=SimpleNamespace(here=True))
    monkeypatch.setattr(campaign, "prepare", lambda *_, **__: here)
    monkeypatch.setattr(campaign, "modelled", lambda *_: (1, 1.0, []))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def command(play: Play, minutes: float = 1e-9) -> Result:
        def played(plan: Episode, folder: Path) -> int | None:
            records, status = play(Model(plan, plan.seed).run())
            text = "".join(map(line, records))
            (folder / "1.log").write_text(text, encoding="utf-8")
            return status

        monkeypatch.setattr(campaign, "_run", played)
        words = ["churn", "--minutes", str(minutes), "--json", str(tmp_path / "rows.json")]
        return CliRunner().invoke(bench, words)

    return command


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "rows.json").read_text())
    return rows


def test_an_episode_as_planned_is_status_0(run: Callable[..., Result], tmp_path: Path) -> None:
    done = run(lambda records: (records, 0))
    assert done.exit_code == 0, done.output
    (row,) = _rows(tmp_path)
    assert (row["status"], row["model_wrong"], row["wrong"], row["joins"]) == (0, 0, 0, 6)


def test_a_job_that_fails_after_its_last_step_is_told(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    done = run(lambda records: (records, 3))
    assert done.exit_code == 1
    assert "0 wrong, 0 hangs, 0 unplanned deaths, 1 with another status than 0" in done.output
    assert "seed 0: status 3; " in done.output
    assert _rows(tmp_path)[0]["status"] == 3


def test_a_job_that_had_to_be_ended_is_a_hang(run: Callable[..., Result], tmp_path: Path) -> None:
    done = run(lambda records: (records, None))
    assert done.exit_code == 1
    (row,) = _rows(tmp_path)
    assert (row["status"], row["hangs"]) == (None, 1)


def test_a_death_that_nobody_planned_is_a_failure(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    def play(records: list[Record]) -> tuple[list[Record], int]:
        name = records[-1].process
        return [one for one in records if one.process != name or one.step < records[-1].step], 0

    done = run(play)
    assert done.exit_code == 1
    assert "seed 0: unplanned 1; " in done.output
    (row,) = _rows(tmp_path)
    assert (row["unplanned"], row["wrong"], row["status"]) == (1, 0, 0)


def test_what_the_model_gets_wrong_is_a_failure(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(campaign, "modelled", lambda *_: (1, 1.0, ["step 3: nobody ended it"]))
    done = run(lambda records: (records, 0))
    assert done.exit_code == 1, done.output
    assert _rows(tmp_path)[0]["model_wrong"] == 1


def test_rows_are_kept_whatever_ends_the_campaign(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    left = [0, 0]

    def play(records: list[Record]) -> tuple[list[Record], int]:
        return records, left.pop()

    done = run(play, minutes=10)
    assert isinstance(done.exception, IndexError)
    assert [row["seed"] for row in _rows(tmp_path)] == [0, 1]
    assert "2 episodes, 32 events" in done.output


def test_rows_have_the_keys_of_all_rows(run: Callable[..., Result], tmp_path: Path) -> None:
    def play(records: list[Record]) -> tuple[list[Record], int]:
        return [one._replace(seconds=0.001 * (1 + one.seat)) for one in records], 0

    assert run(play).exit_code == 0
    (row,) = _rows(tmp_path)
    assert set(BASE) <= set(row)
    assert (row["algorithm"], row["nodes"], row["dtype"], row["op"]) == ("auto", 1, "int64", "sum")
    assert row["iterations"] == row["steps"]
    assert row["time_us_max"] == pytest.approx(6000)
    assert 1000 < row["time_us_rank_mean"] < 6000
    assert (row["size_bytes"], row["algbw_GBps"], row["busbw_GBps"]) == (None, None, None)
    assert row["slowest_s"] == pytest.approx(0.006)


def test_an_episode_without_a_step_has_no_times(run: Callable[..., Result], tmp_path: Path) -> None:
    assert run(lambda _: ([], 1)).exit_code == 1
    (row,) = _rows(tmp_path)
    assert (row["iterations"], row["time_us_p50"], row["hangs"]) == (0, None, 1)
