"""mpi4py's own tests pass with our communicators in the place of its own.

COMM_WORLD and COMM_SELF are both replaced.  Its sdist, of the version that is
installed, is fetched once with pip and kept in the environment; without a network
the tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from closeranks.comms.discovery.node_hardware import usable_cores
from tests.mpi.mpi4py_files import FAILS, FILES, READS, WANTS, left_out
from tests.shares import SEED

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = "tests/mpi/mpi4py_suite.py"
RANKS = (1, 2, 3, 5)
TYPES = "bhilqBHILQfdgFDG?"
#: Days since the beginning of 1970: another number of ranks each day, and another order.
DAY = int(time.time() // 86400) if SEED == "all" else int(SEED)


def _fetch(folder: Path, release: str) -> str:
    """Download the sdist and unpack its tests; what pip said if it cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", "mpi4py", "--no-build-isolation", "--dest", str(folder)]
    done = subprocess.run(
        [*command, f"mpi4py=={release}"], capture_output=True, text=True, timeout=100
    )
    archives = list(folder.glob("mpi4py-*.tar.gz"))
    if not archives:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "pip found none"
    with tarfile.open(archives[0]) as archive:
        names = [m for m in archive.getmembers() if m.name.split("/")[1:2] == ["test"]]
        archive.extractall(folder, members=names, filter="data")
    return ""


@pytest.fixture(scope="module")
def suite() -> str:
    """The folder of mpi4py's tests."""
    release = version("mpi4py")
    folder = Path(sys.prefix) / "share" / "closeranks-tests"
    found = folder / f"mpi4py-{release}" / "test"
    if not (found / "test_cco_buf.py").exists():
        why = _fetch(folder, release)
        if why:
            pytest.skip(f"mpi4py's sdist is not to be had: {why}")
    return str(found)


def _run(mpirun: Run, suite: str, ranks: int, *given: str, limit_s: int) -> list[dict[str, Any]]:
    """Run the program; how the tests of each file ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", suite, prepend=os.pathsep)  # of what tests spawn
        done = mpirun(ranks, PROGRAM, suite, *given, timeout_s=limit_s)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"file"')]
    failed = {row["file"]: row["failed"] for row in rows if row["failed"]}
    assert rows, done.stdout[-4000:]
    assert not failed, f"{failed}\n{done.stdout[-4000:]}"
    assert done.returncode == 0, done.stdout[-4000:]
    return rows


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_a_part_passes_each_day(
    mpirun: Run, suite: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[..., None]
) -> None:
    """One number of ranks, one type and one order a day, as far as 12 seconds go."""
    monkeypatch.setenv("SUITE_SECONDS", "12")
    ranks, kind, seed = RANKS[DAY % len(RANKS)], TYPES[DAY // len(RANKS) % len(TYPES)], str(DAY)
    rows = _run(mpirun, suite, ranks, "ours", "auto", seed, kind, limit_s=95)
    said = f"mpi4py's tests: {len(rows)} of {len(FILES)} files, seed {seed}"
    record_property("layer", f"{said}, {ranks} ranks, type {kind}")


#: Operations on buffers alone, with every way to choose.
BUFFERS = ("test_cco_buf", "test_cco_vec", "test_cco_nb_buf", "test_cco_nb_vec")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("file", BUFFERS)
@pytest.mark.parametrize(
    ("ranks", "mode", "types"),
    [
        (5 if DAY % 2 else 2, "planned", "d"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in [
                (1, "planned", "bdG"),
                (2, "planned", "bdG"),
                (5, "planned", "d"),
                (3, "planned", "bdG?"),
                (5, "levels", "d"),
                *((3, str(number), "d") for number in range(4)),
            ]
        ),
    ],
)
def test_plans_pass(mpirun: Run, suite: str, ranks: int, mode: str, types: str, file: str) -> None:
    done = mpirun(ranks, PROGRAM, suite, "ours", mode, "0", types, file, timeout_s=280)
    assert done.returncode == 0, done.stdout[-4000:]
    ended = re.search(r"planned calls (\d+)", done.stdout)
    assert ended, done.stdout[-4000:]
    assert int(ended[1]) > 0
    assert '"failed": 0' in done.stdout


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ranks", RANKS)
def test_every_type_passes(
    mpirun: Run, suite: str, ranks: int, mpi_library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes a part of docs/mpi4py-suite.md."""
    monkeypatch.setenv("SUITE_LIMIT_S", "1700")
    seed = os.environ.get("SUITE_SEED", str(DAY))
    # Where more than two ranks share a core each type would take a quarter of an hour.
    types = "all" if ranks <= 2 * usable_cores() else TYPES[int(seed) % len(TYPES)]
    ours = _run(mpirun, suite, ranks, "ours", "auto", seed, types, limit_s=1750)
    plain = _run(mpirun, suite, ranks, "plain", "auto", seed, types, limit_s=1750)
    skipped = [
        [{why: n for why, n in row["skipped"].items() if why not in (WANTS, READS)} for row in rows]
        for rows in (ours, plain)
    ]
    assert skipped[0] == skipped[1], "what is skipped is skipped without us, too"
    table = {"library": mpi_library, "ranks": ranks, "seed": seed, "types": types, "rows": ours}
    folder = Path(suite).parent
    (folder / f"rows-{ranks}.json").write_text(json.dumps(table), encoding="utf-8")


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [1, 3])
def test_what_is_left_out_wants_the_predefined_communicators(
    mpirun: Run, suite: str, ranks: int, mpi_library: str
) -> None:
    wants = [test for test, why in left_out(mpi_library).items() if why in (WANTS, FAILS)]
    files = sorted({name.split(".")[0] for name in wants})
    done = mpirun(ranks, PROGRAM, suite, "copies", "auto", "0", "d", *files, timeout_s=100)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"file"')]
    assert sum(row["failed"] for row in rows) == len(wants)
    assert not any(row["passed"] for row in rows)
