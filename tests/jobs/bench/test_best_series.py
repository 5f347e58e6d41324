"""The launches of ``--vs best``, and what they hand on."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from closeranks.errors import UsageError
from closeranks.jobs.bench.best_series import series
from closeranks.jobs.bench.measuring import best_settings
from closeranks.jobs.bench.measuring.best_settings import (
    Best,
    SettingsKey,
    SettingsResult,
    launches,
    settings,
)
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES
from closeranks.jobs.bench.measuring.comparison import against_best, against_native
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.timing import Timing

MakeSession = Callable[..., Session]
MakeRow = Callable[..., dict[str, Any]]

BENCH = ["bench", "allreduce", "--sizes", "64K:16M", "--vs"]


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the series put its folder here."""
    monkeypatch.setattr("closeranks.jobs.bench.best_series._LOCAL", ())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "start", [["closeranks"], ["python3", "-m", "closeranks"], ["/usr/bin/closeranks"]]
)
@pytest.mark.parametrize("vs", ["best", "native,best"])
def test_best_takes_a_launch_for_each_setting(start: list[str], vs: str, shared: Path) -> None:
    program = [*start, *BENCH, vs, "--json", "x.json"]
    planned = series(program, library="openmpi")
    assert len(planned) == len(settings("openmpi", "allreduce")) + 1
    assert all(words == program for words, _ in planned)
    *alone, (_, last) = planned
    assert [env[best_settings.LAUNCH] for _, env in alone] == [str(i) for i in range(len(alone))]
    assert best_settings.LAUNCH not in last
    folders = {env[best_settings.FOLDER] for _, env in planned}
    assert len(folders) == 1
    assert [str(path) for path in shared.iterdir()] == list(folders)


@pytest.mark.parametrize(
    "program",
    [
        ["closeranks", *BENCH, "native"],
        ["closeranks", "bench", "allreduce"],
        ["closeranks", "bench", "pingpong", "--vs", "best"],
        ["closeranks", "bench", "allredcue", "--vs=best"],
        ["closeranks", "doctor"],
        ["closeranks"],
        ["prog.py", "bench", "--vs", "best"],
        ["echo", "say", "closeranks", "bench", "allreduce", "--vs=best"],
    ],
)
def test_everything_else_is_one_launch(program: list[str], shared: Path) -> None:
    assert series(program, library="openmpi") == [(program, {})]
    assert not list(shared.iterdir())


def test_equals_sign_and_several_operations() -> None:
    program = ["closeranks", "bench", "bcast", "scan", "--vs=best"]
    planned = series(program, library="mpich")
    most = max(len(settings("mpich", name)) for name in ("bcast", "scan"))
    assert len(planned) == most + 1


def test_a_local_folder_is_the_second_choice(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeranks.jobs.bench.best_series._LOCAL", (str(shared),))
    monkeypatch.setenv("HOME", str(shared / "home"))
    planned = series(["closeranks", *BENCH, "best"], library="other")
    assert Path(planned[-1][1][best_settings.FOLDER]).parent == shared / "home/.cache/closeranks"
    monkeypatch.setenv("HOME", "/dev/null")
    planned = series(["closeranks", *BENCH, "best"], library="other")
    assert Path(planned[-1][1][best_settings.FOLDER]).parent == shared


def test_without_a_writable_folder_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.chdir("/proc/self")
    with pytest.raises(UsageError, match="writable; start it in a writable folder"):
        series(["closeranks", *BENCH, "best"], library="openmpi")


@pytest.mark.parametrize("library", ["openmpi", "mpich", "other"])
def test_settings_contain_the_defaults(library: str) -> None:
    for name in COLLECTIVES:
        known = settings(library, name)
        assert [one.environment for one in known if one.label == "defaults"] == [{}]
        assert len({one.label for one in known}) == len(known)
    longest = max(len(settings(library, name)) for name in COLLECTIVES)
    assert len(launches(library, COLLECTIVES)) == longest
    assert launches(library, ["allreduce"]) == [
        one.environment for one in settings(library, "allreduce")
    ]
    with pytest.raises(UsageError, match="unknown library"):
        settings("lam", "allreduce")


def test_operations_share_launches_without_contradiction() -> None:
    for library in ("openmpi", "mpich"):
        merged = launches(library, COLLECTIVES)
        for name in COLLECTIVES:
            for one, environment in zip(settings(library, name), merged, strict=False):
                assert one.environment.items() <= environment.items()
                if one.label == "defaults":
                    assert not any(name.upper() in variable for variable in environment)


def test_results_survive_the_folder(tmp_path: Path) -> None:
    key = SettingsKey("bcast", "auto", "int8", "none", 64, True)
    best_settings.write(tmp_path, 0, [SettingsResult(key, 2.5, "defaults")])
    best_settings.write(tmp_path, 1, [SettingsResult(key, 1.5, "binomial", 0.5)])
    found = Best(best_settings.read(tmp_path))
    assert found.fastest(key) == SettingsResult(key, 1.5, "binomial", 0.5)
    assert found.fastest(SettingsKey("bcast", "ring", "int8", "none", 64, True)) is None
    assert found.hardest(SettingsKey("bcast", "auto", "int8", "none", 64, False), 1.0) is None
    assert list(found.settings["bcast"]) == ["defaults", "binomial"]


def test_environment() -> None:
    assert best_settings.folder({}) is None
    assert best_settings.launch({}) is None
    assert best_settings.folder({best_settings.FOLDER: "/x"}) == Path("/x")
    assert best_settings.launch({best_settings.LAUNCH: "3"}) == 3


def test_against_best_takes_the_fastest(session: MakeSession, row: MakeRow) -> None:
    where = session(best=True)
    assert against_best(where, row()) == {
        "best_us_p50": 3500.0,
        "best_settings": "ring",
        "speedup_best": 1.0,
    }
    here = against_best(where, row(native_us_p50=1750.0, speedup=0.5))
    assert here == {"best_us_p50": 1750.0, "best_settings": "defaults", "speedup_best": 0.5}
    unknown = against_best(where, row(size_bytes=1))
    assert unknown == {"best_us_p50": None, "best_settings": None, "speedup_best": None}


def test_a_setting_meets_us_in_its_own_launch(session: MakeSession, row: MakeRow) -> None:
    """The machine was twice as fast while "ring" ran: its time says nothing about ours here."""
    key = SettingsKey("allreduce", "auto", "float32", "sum", 65536, False)
    met = [
        SettingsResult(key, 1500.0, "ring", 1000.0),
        SettingsResult(key, 2600.0, "coll=^han", 2000.0),
    ]
    where = replace(session(best=True), best=Best(met))
    assert against_best(where, row(time_us_p50=2000.0, native_us_p50=3000.0, speedup=1.5)) == {
        "best_us_p50": 2600.0,
        "best_settings": "coll=^han",
        "speedup_best": 1.3,
    }


def test_against_native() -> None:
    import numpy as np

    times = {"ours": 2.0, "native": 4.0, "again": 5.0}
    timings = {k: Timing(np.full(11, t), t, 11, False) for k, t in times.items()}
    columns = against_native(timings)
    assert columns["native_us_p50"] == pytest.approx(4e6)
    assert columns["speedup"] == pytest.approx(2.0)
    assert columns["native_vs_native"] == pytest.approx(0.8)


def test_the_library_knows_the_names_of_its_algorithms() -> None:
    folder = Path(sys.executable).parent
    if (folder / "ompi_info").exists():
        words = ["--param", "coll", "all", "--level", "9", "--parsable"]
        text = subprocess.run(
            [folder / "ompi_info", *words], capture_output=True, text=True, check=True
        ).stdout
        pattern, library = r"mca:coll:tuned:param:{}:enumerator:value:\d+:{}$", "openmpi"
    elif (folder / "mpivars").exists():
        text = subprocess.run([folder / "mpivars"], capture_output=True, text=True).stdout
        pattern, library = r"\t{}\b(?:(?!\n\tMPIR_CVAR)[^\0])*?\n{}\b", "mpich"
    else:
        pytest.skip("neither ompi_info nor mpivars beside this Python")
    chosen = {
        (variable.removeprefix("OMPI_MCA_"), value)
        for name in COLLECTIVES
        for one in settings(library, name)
        for variable, value in one.environment.items()
        if variable.endswith(("_algorithm", "_ALGORITHM"))
    }
    assert len(chosen) > 20
    known = {pair for pair in chosen if re.search(pattern.format(*pair), text, re.MULTILINE)}
    assert known == chosen
