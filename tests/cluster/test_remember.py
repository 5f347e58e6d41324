"""Steps that are ended in a real SLURM, and come back from the memory of its nodes."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from closeranks.jobs.launch.mpi_library import MpiLibrary
from closeranks.jobs.launch.slurm_srun import FENCE, PLUGINS
from tests.cluster.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

PROGRAM = Path(__file__).parent / "remember.py"

EXAMPLES = Path(__file__).parents[2] / "examples"

#: Two steps are ended when they have saved three times; the last one only restores.
SCRIPT = """\
set -eu
step() { exec srun --overlap --mpi=$PLUGIN -N4 -n4 "$@"; }
ready() { for _ in {1..600}; do [ ! -e ready ] || { rm ready; return; }; sleep 0.05; done; exit 9; }

step "$@" work >first & ready
scancel $SLURM_JOB_ID.0; ! wait $!

printf '%s\\n' n4 n2 n3 n1 >order
SLURM_HOSTFILE=order step -m arbitrary "$@" work >second & ready
scancel --signal=KILL $SLURM_JOB_ID.1; ! wait $!

srun --overlap -N1 -n1 -w n2 sh -c 'rm -r /dev/shm/closeranks-*'
(step "$@" look >third)
echo $SLURM_JOB_ID
"""


def test_steps_that_were_ended_come_back_from_memory(
    slurm: Slurm, tmp_path: Path, linked: MpiLibrary
) -> None:
    words = [sys.executable, str(PROGRAM), str(tmp_path)]
    plugin = PLUGINS[linked.kind]
    done = slurm.run(
        "salloc", "-Q", "-N4", "--ntasks-per-node=1", "bash", "-c", SCRIPT, "bash", *words,
        cwd=tmp_path, environment={"PLUGIN": plugin, **FENCE}, timeout_s=80,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second, third = (
        (tmp_path / name).read_text().split() for name in ("first", "second", "third")
    )
    assert first == ["from", "0", "on", "n1", "n2", "n3", "n4"]
    assert second[2:] == ["on", "n4", "n2", "n3", "n1"]
    assert int(second[1]) >= 3
    assert third[2:] == first[2:]
    assert int(third[1]) >= int(second[1]) + 3
    # another job of the same name does not see it
    other = ["srun", f"--mpi={plugin}", "-N1", "-n1", "-w", "n1", *words, "look"]
    found = slurm.run(*other, cwd=tmp_path)
    assert found.stdout.split() == ["from", "0", "on", "n1"], found.stderr
    clean = "ls /dev/shm/closeranks-*; rm -r /dev/shm/closeranks-*"
    left = slurm.run("srun", "-N4", "-n4", "sh", "-c", clean).stdout
    assert f"checkpoint-remember.{done.stdout.strip()}-" in left


class Batch:
    """A job of `keep_going.sh`, and what it says."""

    def __init__(self, slurm: Slurm, folder: Path, steps: int, plugin: str) -> None:
        self._slurm, self._output = slurm, folder / "output"
        words = ["sbatch", "--parsable", "-N4", "--ntasks-per-node=1", f"--output={self._output}"]
        words += [str(EXAMPLES / "keep_going.sh"), sys.executable]
        settings = {"MPI": plugin, "ANSWER_S": "2"}
        done = slurm.run(*words, str(EXAMPLES / "keep_going.py"), str(steps), environment=settings)
        self.job = done.stdout.strip()

    def said(self) -> str:
        """Give all that it has said."""
        return self._output.read_text() if self._output.exists() else ""

    def state(self) -> str:
        """Ask the queue; nothing if it is over."""
        return self._slurm.run("squeue", "-h", "-j", self.job, "-o", "%T").stdout.strip()

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until something is so."""
        end = time.monotonic() + 40
        while not is_so():
            if time.monotonic() > end or not self.state():
                pytest.fail(f"waited for {what}, in vain: {self.said()}")
            time.sleep(0.1)

    def hear(self, text: str) -> None:
        """Wait until it has said something."""
        self.wait(lambda: text in self.said(), text)


def cancel(slurm: Slurm, batch: Batch) -> None:
    """Kill the ranks of the step."""
    steps = slurm.run("squeue", "-s", "-h", "-j", batch.job, "-o", "%i").stdout.split()
    last = max(int(name.rpartition(".")[2]) for name in steps if name[-1].isdigit())
    slurm.run("scancel", "--signal=KILL", f"{batch.job}.{last}")


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize(("ends", "nodes"), [
    (cancel, "n1 n2 n3"),
    pytest.param(lambda slurm, _: slurm.power_off("n2"), "n1 n3 n4", marks=pytest.mark.exhaustive),
], ids=["the step", "a node"])  # fmt: skip
def test_a_job_outlives_what_it_loses_and_its_time(
    slurm: Slurm,
    tmp_path: Path,
    linked: MpiLibrary,
    ends: Callable[[Slurm, Batch], None],
    nodes: str,
) -> None:
    batch = Batch(slurm, tmp_path, 1_000_000, PLUGINS[linked.kind])
    try:
        batch.hear("step 200")
        time.sleep(1)  # it saves every 0.2 s
        ends(slurm, batch)
        batch.hear("attempt 1 on n1 n2 n3 has ended with 1")
        batch.wait(lambda: batch.said().count("from step") == 2, "the second attempt")
        batch.wait(lambda: "\nstep" in batch.said().split("from step")[2], "its work")
        slurm.run("scancel", "--signal=USR1", "--batch", batch.job)  # as when its time is up
        batch.hear(f"attempt 2 on {nodes} has ended with")  # 75, or 143: the first ends the others
        batch.wait(lambda: batch.state() == "PENDING", "the job in the queue again")
    finally:
        slurm.run("scancel", batch.job)
        slurm.restore()
    started = [int(step) for step in re.findall(r"from step (\d+)", batch.said())]
    assert started[0] == 0
    assert started[1] > 100
    ((step, sums),) = re.findall(r"stopped at step (\d+), sums (.*)", batch.said())
    assert json.loads(sums) == [walked(rank, int(step)) for rank in range(3)]


def walked(rank: int, steps: int) -> float:
    """Where the walks of a rank come to if nothing ends them."""
    rng, walks = np.random.default_rng(rank), np.zeros(1000)
    for _ in range(steps):
        walks += rng.standard_normal(len(walks))
    return float(walks.sum())
