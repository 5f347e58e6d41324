"""A real SLURM of several nodes on one machine, for tests.

All daemons run in namespaces of their own (processes, mounts, network, host
name), so two of them never meet, nothing has to be installed or linked on the
machine, and the end of the first process ends everything.  Every node has its
own host name, without which MPI would take them for one, and its own
``/dev/shm``, which ends with its last process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

SPACES = ("--mount", "--pid", "--net", "--uts")
DAEMONS = ("slurmctld", "slurmd")
PORT = 16800

# No munge, accounting or cgroups; nodes may promise more CPUs than there are.
CONFIGURATION = """\
ClusterName=closeranks
SlurmctldHost=control(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
TopologyPlugin=topology/tree
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
ReturnToService=1
SlurmdTimeout=10
KillWait=3
NodeName=n[1-{nodes}] NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Say why no SLURM can be started here, or nothing."""
    absent = [name for name in (*DAEMONS, "srun", "unshare", "ip") if not _find(name)]
    if absent:
        return f"not installed: {', '.join(absent)} (slurm-wlm, libpmix2, iproute2)"
    if os.geteuid() != 0:
        return "starting SLURM's daemons needs root"
    trial = subprocess.run(
        ["unshare", *SPACES, "--fork", "true"], capture_output=True, text=True, check=False
    )
    return trial.stderr.strip()


def _find(name: str) -> str | None:
    """Find a program, also where only root looks."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _space(pid: int) -> str:
    """Name the space of host names in which a process is, if it lives."""
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/uts").readlink())
    return ""


class Slurm:
    """A running SLURM; a context manager."""

    def __init__(self, *, nodes: int = 4, cpus: int = 4) -> None:
        self.nodes = nodes
        self.folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
        self._on: set[str] = set()
        self._configure(cpus)
        self._first = subprocess.Popen(
            ["unshare", *SPACES, "--fork", "--kill-child=KILL", "--mount-proc", "sleep", "600"],
            start_new_session=True,
        )
        self._inside = self._child(self._first.pid)

    def __enter__(self) -> Slurm:
        try:
            self._prepare()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the first process, and with it every other one."""
        self._first.kill()
        self._first.wait()
        while Path(f"/proc/{self._inside}").exists():
            time.sleep(0.01)
        shutil.rmtree(self.folder)

    def run(
        self,
        *words: str,
        timeout_s: float = 30,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command where SLURM is; its status is not checked."""
        # a folder of its own: the daemons of the launch before may still clear theirs
        own = tempfile.mkdtemp(prefix="run", dir=self.folder)
        settings = {"SLURM_CONF": str(self.folder / "slurm.conf"), "TMPDIR": own}
        settings |= environment or {}
        enter = ["nsenter", "--target", str(self._inside), "--mount", "--pid", "--net", "--uts"]
        return subprocess.run(
            [*enter, f"--wd={cwd or self.folder}", *words],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def restore(self) -> None:
        """Start the nodes that are off, and wait until all are idle."""
        for node in sorted({f"n{i + 1}" for i in range(self.nodes)} - self._on):
            self._power_on(node)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            idle = self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").stdout.split()
            if len(set(idle)) == self.nodes:
                return
            time.sleep(0.1)
        logs = "\n".join(path.read_text()[-1000:] for path in self.folder.glob("*.log"))
        raise RuntimeError(f"SLURM's nodes are not idle after 30 s\n{logs}")

    def power_off(self, node: str) -> None:
        """Kill all that runs on a node; what is in its memory is gone."""
        place = (self.folder / f"{node}.space").read_text().strip()
        while here := [pid for pid in psutil.pids() if _space(pid) == place]:
            for pid in here:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self._on.remove(node)

    def _power_on(self, node: str) -> None:
        """Start a node, with an empty memory."""
        steps = [
            "mount -t tmpfs -o mode=1777 tmpfs /dev/shm", f"hostname {node}",
            f"readlink /proc/self/ns/uts >{self.folder}/{node}.space",
            f"exec {_find('slurmd')} -N {node}",
        ]  # fmt: skip
        self._check("unshare", "--mount", "--uts", "sh", "-ec", "\n".join(steps))
        self._on.add(node)

    def _configure(self, cpus: int) -> None:
        """Write the configuration and make the folders it names."""
        for name in ("state", *(f"spool/n{i + 1}" for i in range(self.nodes))):
            (self.folder / name).mkdir(parents=True)
        for i in range(self.nodes):
            (self.folder / f"tmp/n{i + 1}").mkdir(parents=True)
        text = CONFIGURATION.format(
            folder=self.folder,
            port=PORT,
            nodes=self.nodes,
            cpus=cpus,
            first=PORT + 1,
            last=PORT + self.nodes,
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        pairs = [range(i, min(i + 2, self.nodes)) for i in range(0, self.nodes, 2)]
        lines = [
            f"SwitchName=leaf{i} Nodes=" + ",".join(f"n{node + 1}" for node in pair)
            for i, pair in enumerate(pairs)
        ]
        lines.append("SwitchName=spine Switches=" + ",".join(f"leaf{i}" for i in range(len(pairs))))
        (self.folder / "topology.conf").write_text("\n".join(lines) + "\n")

    def _prepare(self) -> None:
        """Name the machine, bring up a network, show PMIx where SLURM looks."""
        script = ["hostname control", "ip link set lo up"]
        script += ["ip link add eth0 type veth peer name eth1", "ip link set eth1 up"]
        script += ["ip addr add 10.78.0.1/24 dev eth0", "ip link set eth0 up"]
        names = " ".join(f"n{i + 1}" for i in range(self.nodes))
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n10.78.0.1 control {names}\n")
        script += [f"mount --bind {hosts} /etc/hosts"]
        for place in Path("/usr/lib").glob("*/pmix2/lib"):
            if (place / "libpmix.so.2").exists() and not (place / "libpmix.so").exists():
                behind = self.folder / "pmix"
                behind.mkdir()
                script += [f"mount --bind {place} {behind}", f"mount -t tmpfs tmpfs {place}"]
                script += [f"ln -s {behind}/* {place}/"]
                script += [f"ln -s {behind}/libpmix.so.2 {place}/libpmix.so"]
        self._check("sh", "-ec", "\n".join(script))

    def _start(self) -> None:
        """Start the daemons."""
        self._check(_find("slurmctld") or "", "-c")
        self.restore()

    def _check(self, *words: str) -> None:
        """Run a command that must succeed."""
        done = self.run(*words)
        if done.returncode != 0:
            raise RuntimeError(f"{words}: {done.stdout}{done.stderr}")

    def _child(self, pid: int) -> int:
        """Wait for the process that ``unshare`` forks."""
        for _ in range(500):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "sleep":
                return int(children[0])
            time.sleep(0.01)
        raise RuntimeError("unshare started nothing within 5 s")
