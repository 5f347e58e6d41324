"""Real labs: what ranks see inside, and that nothing is left of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.child import closeranks, end, said, start

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    """Skip everything here where namespaces are forbidden."""
    done = closeranks("lab", "--nodes", "1", "--", "true")
    if "emulated cluster" in done.stderr or "not available here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])


@pytest.mark.parametrize(("order", "hosts"), [("block", "0001122"), ("round-robin", "0120120")])
def test_uneven_nodes_in_both_orders(rank: str, order: str, hosts: str) -> None:
    done = closeranks("lab", "--per-node", "3,2,2", "--order", order, "--", rank)
    assert done.returncode == 0, done.stderr
    sizes = {"0": "3", "1": "2", "2": "2"}
    expected = [[str(i), "7", f"node{n}", sizes[n]] for i, n in enumerate(hosts)]
    assert said(done.stdout) == expected


WORLD = """\
import os, pathlib, socket, sys, json
from mpi4py import MPI
comm = MPI.COMM_WORLD
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
for folder in ("/tmp", "/dev/shm", "."):
    pathlib.Path(folder, f"mine-{comm.rank}").touch()
comm.Barrier()
seen = [len(list(pathlib.Path(folder).glob("mine-*"))) for folder in ("/tmp", "/dev/shm", ".")]
lab = json.loads(os.environ["CLOSERANKS_LAB"])
nics = [name for name in os.listdir("/sys/class/net") if name != "lo"]
window = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
words = [comm.rank, *seen, len(nics), window, socket.gethostbyname(socket.gethostname())]
words += [lab["nodes"], lab["order"], os.environ["TMPDIR"], os.getpid() < 1000]
pathlib.Path(sys.argv[1]).write_text("result") if comm.rank == 0 else None
sys.stdout.write(" ".join(map(str, words)) + "\\n")
sys.stdout.flush()
"""


@pytest.fixture
def result() -> Iterator[Path]:
    """A file directly in /tmp."""
    path = Path(f"/tmp/closeranks-test-{os.getpid()}.txt")
    yield path
    path.unlink(missing_ok=True)


def test_each_node_is_a_machine_of_its_own(tmp_path: Path, result: Path) -> None:
    (tmp_path / "world.py").write_text(WORLD)
    words = ("lab", "--nodes", "2", "--per-node", "2", "--", "world.py", str(result))
    done = closeranks(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rest = ["2", "block", "/tmp", "True"]
    assert said(done.stdout) == [
        [str(i), "2", "2", "4", "1", "reno", f"10.77.0.{i // 2 + 1}", *rest] for i in range(4)
    ]
    assert result.read_text() == "result"  # named on the command line: handed back
    assert not list(Path("/tmp").glob("mine-*"))


def test_the_rates_are_checked(rank: str) -> None:
    lab = ("lab", "--nodes", "2", "--sites", "2", "--nics", "2", "--rate", "100mbit")
    done = closeranks(*lab, "--site-rate", "50mbit", "--", rank, "CLOSERANKS_SITE")
    assert done.returncode == 0, done.stderr
    assert [words[4] for words in said(done.stdout)] == ["site0", "site1"]
    assert "between sites" in done.stderr
    assert "expected 5.98" in done.stderr


def test_a_rate_the_machine_cannot_reach_is_an_error() -> None:
    lab = ("lab", "--nodes", "2", "--rate", "100gbit")
    done = closeranks(*lab, "--", "true")
    assert done.returncode == 1
    assert "lab self-check: NICs:" in done.stderr
    assert "limit 5%" in done.stderr
    assert closeranks(*lab, "--no-check", "--", "true").returncode == 0


RAILS = """\
import os, sys, pathlib
import numpy
from mpi4py import MPI
comm = MPI.COMM_WORLD
node = comm.Split_type(MPI.COMM_TYPE_SHARED)

def sent():
    comm.Barrier()
    folders = sorted(pathlib.Path("/sys/class/net").glob("eth*"))
    counts = numpy.array([int((f / "statistics/tx_bytes").read_text()) for f in folders])
    comm.Barrier()  # nobody sends before all have read
    return counts

x, y = numpy.zeros(2**20, numpy.uint8), numpy.empty(2**20, numpy.uint8)
other = (comm.rank + node.size) % comm.size
for turn in range(2):
    before = sent()
    if node.rank == 1 or turn == 0:
        comm.Sendrecv(x, other, recvbuf=y, source=other)
    mb = (sent() - before) / 2**20
counted = " ".join(f"{v:.2f}" for v in mb)
sys.stdout.write(f"{comm.rank} {os.environ['CLOSERANKS_NIC']} {counted}\\n")  # in one piece
sys.stdout.flush()
"""


def test_a_rail_is_a_rank_bound_to_its_nic(tmp_path: Path) -> None:
    (tmp_path / "rails.py").write_text(RAILS)
    lab = ("lab", "--nodes", "2", "--per-node", "2", "--nics", "2")
    done = closeranks(*lab, "--", "rails.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for number, nic, first, second in said(done.stdout):
        assert nic == f"eth{int(number) % 2}"
        assert float(first) < 0.3  # only the second rank of each node sent
        assert 1.0 <= float(second) < 1.5  # a starved machine sends some frames twice


def test_two_labs_at_once_do_not_meet(rank: str, sleeper: str) -> None:
    words = ("lab", "--nodes", "2", "--per-node", "2", "--no-check", "--rate", "1gbit", "--")
    first, second = start(*words, sleeper, "1"), start(*words, rank)
    done = end(second)
    assert done.returncode == 0, done.stderr
    assert [words[1:] for words in said(done.stdout)] == [
        ["4", f"node{i // 2}", "2"] for i in range(4)
    ]
    assert end(first).returncode == 0


def test_the_programs_status_is_passed_on() -> None:
    done = closeranks("lab", "--nodes", "1", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3, done.stderr
