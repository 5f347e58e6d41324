"""Run tests/mpi on four real ranks; a launch that fails or hangs ends whole."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.shares import SEED, seconds_by_file

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PYTEST = ("-m", "pytest", "--with-mpi", "--capture=sys", "--color=no", "-p", "no:cacheprovider")


@pytest.mark.slow
@pytest.mark.timeout(920)
def test_real_ranks(
    mpirun: Run,
    mpi_library: str,
    record_property: Callable[[str, object], None],
) -> None:
    """On four ranks, and by turns on one, two or three."""
    done = mpirun(4, *PYTEST, "tests/mpi", "--durations=0", timeout_s=900)
    assert done.returncode == 0, done.stdout
    ended = re.search(r"=+ (.*\b[1-9]\d* passed.*?) =+$", done.stdout, re.MULTILINE)
    assert ended, done.stdout
    record_property(
        "layer", f"real ranks, {mpi_library}, TESTS_SEED={SEED} mpirun -n 4 tests/mpi: {ended[1]}"
    )
    spent = re.findall(r"^(\d+\.\d+)s (?:setup|call|teardown) +(\S+)", done.stdout, re.MULTILINE)
    said = seconds_by_file((name, float(seconds)) for seconds, name in spent)
    record_property("layer", f"real ranks, by file: {said}")


def test_a_rank_that_dies_ends_the_launch(mpirun: Run, tmp_path: Path) -> None:
    body = "import os\n\n\ndef test_it(comm):\n    comm.rank == 1 and os._exit(3)\n"
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_one.py").write_text(body)
    done = mpirun(2, *PYTEST, "-p", "closeranks.testing", str(tmp_path), timeout_s=60)
    assert done.returncode != 0


def test_a_launch_past_its_time_is_ended_whole(mpirun: Run, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    sleeper = f"import os, time; open({str(pids)!r} + f'/{{os.getpid()}}', 'w'); time.sleep(60)"
    with pytest.raises(pytest.fail.Exception, match="no end after 5 s"):
        mpirun(2, "-c", sleeper, timeout_s=5)
    started = [int(path.name) for path in pids.iterdir()]
    assert len(started) == 2
    assert [pid for pid in started if psutil.pid_exists(pid)] == []
