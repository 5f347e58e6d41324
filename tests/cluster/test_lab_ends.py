"""How labs and their nodes end: killed, stopped, and as another user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from closeranks.jobs.lab.control import running_labs
from tests.cluster.child import await_end, await_line, closeranks, end, said, start

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

LAB = ("lab", "--nodes", "2", "--per-node", "2", "--rate", "1gbit", "--no-check")


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    """Skip everything here where namespaces are forbidden."""
    done = closeranks("lab", "--nodes", "1", "--", "true")
    if "not available here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])


@pytest.fixture
def lab(sleeper: str) -> Iterator[subprocess.Popen[str]]:
    """A lab whose ranks sleep."""
    child = start(*LAB, "--", sleeper, "30")
    await_line(child, "ready")
    yield child
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _family(child: subprocess.Popen[str]) -> list[psutil.Process]:
    """List the processes of a lab."""
    return list(psutil.Process(child.pid).children(recursive=True))


def _number(child: subprocess.Popen[str]) -> str:
    """Tell the process number by which a lab is known outside."""
    (number,) = {process.pid for process in _family(child)}.intersection(running_labs())
    return str(number)


def _network(pid: int) -> str:
    """Name the network a process is in."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def test_a_killed_lab_leaves_nothing(lab: subprocess.Popen[str]) -> None:
    def outside() -> tuple[set[str], str]:
        return {path.name for path in Path("/sys/class/net").iterdir()}, Path(
            "/proc/self/mounts"
        ).read_text()

    family, before = _family(lab), outside()
    networks = {_network(process.pid) for process in family} - {_network(os.getpid())}
    assert len(networks) == 3  # two nodes and the head
    assert len(family) >= 10
    lab.kill()
    lab.wait()
    assert await_end(family) == []
    assert outside() == before
    for process in psutil.process_iter():
        try:
            assert _network(process.pid) not in networks
        except OSError:  # it ended meanwhile, or is not ours to look at
            continue
    left = [*Path("/dev/shm").iterdir(), *Path("/tmp").iterdir()]
    assert not [path for path in left if ".node" in path.name or ".closeranks" in path.name]


def test_ending_a_lab_ends_its_ranks(lab: subprocess.Popen[str]) -> None:
    family = _family(lab)
    os.kill(lab.pid, signal.SIGTERM)
    assert end(lab).returncode != 0
    assert await_end(family) == []


def test_nodes_are_stopped_and_killed_from_outside(lab: subprocess.Popen[str]) -> None:
    number = _number(lab)
    asleep = {p for p in _family(lab) if p.status() != psutil.STATUS_STOPPED}
    assert closeranks("lab", "stop-node", "1", "--lab", number).returncode == 0
    stopped = {p for p in asleep if p.status() == psutil.STATUS_STOPPED}
    hosts = {_network(p.pid) for p in stopped}
    assert len(hosts) == 1
    assert len([p for p in stopped if "sleeper.py" in " ".join(p.cmdline())]) >= 2
    assert closeranks("lab", "kill-node", "7", "--lab", number).returncode != 0
    assert closeranks("lab", "kill-node", "1", "--lab", number).returncode == 0
    assert await_end(list(stopped)) == []
    assert end(lab).returncode != 0


KILLER = """\
import subprocess, sys, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    for node in ("7", "1"):
        words = [sys.executable, "-m", "closeranks", "lab", "kill-node", node]
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
        sys.stdout.write(f"{done.returncode} {done.stderr}\\n")
        sys.stdout.flush()
time.sleep(30)
"""


def test_a_rank_may_kill_another_node(tmp_path: Path) -> None:
    (tmp_path / "killer.py").write_text(KILLER)
    done = closeranks(*LAB, "--", "killer.py", cwd=tmp_path)
    refused = "2 closeranks: error: kill-node: no node 7: this lab has nodes 0 to 1"
    assert refused in done.stdout, done.stdout + done.stderr
    assert done.returncode != 0


def _as_nobody() -> tuple[list[str], str]:
    """Give the words that run Python as nobody, or why that cannot be."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return [], "becoming nobody needs root and setpriv"
    root = Path(__file__).resolve().parents[2]
    places = [path for path in sys.path if path.endswith("site-packages")]
    settings = {
        "HOME": "/tmp",
        "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/bin",
        "PYTHONPATH": ":".join([str(root), *places]),
        "LD_LIBRARY_PATH": f"{sys.prefix}/lib",
    }
    who = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "env", "-i"]
    who += [f"{name}={value}" for name, value in settings.items()]
    for python in (sys.executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"):
        trial = [*who, python, "-c", "import click, numpy, closeranks; from mpi4py import MPI"]
        if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
            return [*who, python], ""
    return [], "no Python here that nobody may use"


def test_a_lab_of_nobody(programs: Path) -> None:
    prefix, problem = _as_nobody()
    if problem:
        pytest.skip(problem)
    folder = Path(f"/tmp/closeranks-nobody-{os.getpid()}")
    shutil.copytree(programs, folder)
    folder.chmod(0o755)
    try:
        words = ("lab", "--nodes", "2", "--per-node", "2", "--rate", "100mbit", "--", "rank.py")
        done = end(start(*words, cwd=folder, prefix=prefix))
    finally:
        shutil.rmtree(folder)
    if "not available here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert [words[1:] for words in said(done.stdout)] == [
        ["4", f"node{i // 2}", "2"] for i in range(4)
    ]
    assert "expected 11.96" in done.stderr
