"""The examples run as a user would run them, and stay short."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="not a checkout: no examples")


def test_examples_are_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert lengths
    assert max(lengths.values()) <= 60


def test_lost_blocks_come_back() -> None:
    command = [sys.executable, str(EXAMPLES / "lose_blocks.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "blocks [1, 3] lost, 0 bytes wrong" in done.stdout
    assert "survives the loss of any one switch, node" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_simulation_is_remembered(
    mpirun: Callable[..., subprocess.CompletedProcess[str]], ranks: int
) -> None:
    done = mpirun(ranks, str(EXAMPLES / "remember.py"), timeout_s=60)
    assert done.returncode == 0, done.stdout
    assert "back at step 10, 0 numbers wrong" in done.stdout


@pytest.mark.slow
def test_a_simulation_comes_back_from_disk(
    mpirun: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = mpirun(3, str(EXAMPLES / "come_back.py"), timeout_s=60)
    assert done.returncode == 0, done.stdout
    assert "step 5 was shared by 3 ranks; back on 2 ranks, 0 numbers wrong" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
def test_training_recognises_digits(
    mpirun: Callable[..., subprocess.CompletedProcess[str]], ranks: int
) -> None:
    pytest.importorskip("sklearn")
    done = mpirun(ranks, str(EXAMPLES / "train_digits.py"), timeout_s=60)
    assert done.returncode == 0, done.stdout
    found = re.search(r"test accuracy (0\.\d+)", done.stdout)
    assert found, done.stdout
    assert float(found[1]) >= 0.95


@pytest.mark.slow
def test_the_mean_of_arrays_where_they_lie(
    mpirun: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = mpirun(2, str(EXAMPLES / "device_mean.py"), timeout_s=60)
    assert done.returncode == 0, done.stdout
    assert "largest error 0.0e+00" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_average_in_arrays_that_the_node_shares(
    mpirun: Callable[..., subprocess.CompletedProcess[str]], ranks: int
) -> None:
    done = mpirun(ranks, str(EXAMPLES / "average_in_place.py"), timeout_s=60)
    assert done.returncode == 0, done.stdout
    assert re.search(r"of NumPy [\d.]+ ms, of comm.empty [\d.]+ ms", done.stdout), done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("needs_open_mpi")
def test_a_simulation_carries_on_without_a_rank(
    launch: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "4", "--"]
    done = launch([*command, str(EXAMPLES / "carry_on.py")])
    assert "step 10: lost (1,), 3 ranks go on" in done.stdout, done.stdout
    assert "mean square 0.500000000000 after 20 steps, epoch 1" in done.stdout


@pytest.mark.usefixtures("needs_open_mpi")
def test_a_spare_takes_a_seat_and_gets_the_state(
    launch: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "3", "--spares", "1"]
    done = launch([*command, "--", str(EXAMPLES / "newcomer.py")])
    assert "rank 1 joined in epoch 1" in done.stdout, done.stdout
    assert "stretched 300.167297140 times" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_heat_spreads_as_on_one_rank(
    mpirun: Callable[..., subprocess.CompletedProcess[str]], ranks: int
) -> None:
    done = mpirun(ranks, str(EXAMPLES / "heat.py"), timeout_s=60)
    assert done.returncode == 0, done.stdout
    found = re.search(r"largest difference from the serial solution (\S+)", done.stdout)
    assert found, done.stdout
    assert float(found[1]) < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_pencils_are_transformed_as_one_cube(
    mpirun: Callable[..., subprocess.CompletedProcess[str]], ranks: int
) -> None:
    done = mpirun(ranks, str(EXAMPLES / "pencil_fft.py"), timeout_s=60)
    assert done.returncode == 0, done.stdout
    found = re.search(r"largest difference from np.fft.fftn (\S+)", done.stdout)
    assert found, done.stdout
    assert float(found[1]) < 1e-11


@pytest.mark.parametrize("ranks", [1, 4])
def test_rows_of_an_embedding_are_a_part_of_the_bytes(
    mpirun: Callable[..., subprocess.CompletedProcess[str]], ranks: int
) -> None:
    done = mpirun(ranks, str(EXAMPLES / "embedding_rows.py"), timeout_s=60)
    assert done.returncode == 0, done.stdout
    found = re.search(r"sent (\S+) bytes by rows, (\S+) by whole", done.stdout)
    assert found, done.stdout
    rows, whole = (int(text.replace(",", "")) for text in found.groups())
    assert 50 * rows <= whole


@pytest.mark.parametrize("ranks", [1, 4])
def test_tokens_go_once_to_each_rank(
    mpirun: Callable[..., subprocess.CompletedProcess[str]], ranks: int
) -> None:
    done = mpirun(ranks, str(EXAMPLES / "route_tokens.py"), timeout_s=60)
    assert done.returncode == 0, done.stdout
    found = re.search(r"(\d+) rows went to experts for (\d+) choices", done.stdout)
    assert found, done.stdout
    assert int(found[1]) < int(found[2])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_coded_loop_comes_to_the_same_weights(
    mpirun: Callable[..., subprocess.CompletedProcess[str]], ranks: int
) -> None:
    done = mpirun(ranks, str(EXAMPLES / "train_coded.py"), timeout_s=60)
    assert done.returncode == 0, done.stdout
    found = re.search(r"right: (\S+)% and (\S+)%", done.stdout)
    assert found, done.stdout
    assert found[1] == found[2]
    assert float(found[1]) > 90
