"""One node of a lab: a process that holds its namespaces and reaps orphans.

The node's first process does nothing else; when it is killed, the kernel
kills every process of the node, as a power cut would.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from closeranks.jobs.lab import scratch
from closeranks.jobs.lab.plan import LabPlan
from closeranks.jobs.launch import linux_namespaces

_OWN = (
    linux_namespaces.MOUNT
    | linux_namespaces.UTS
    | linux_namespaces.IPC
    | linux_namespaces.NET
    | linux_namespaces.PID
)


class Node(NamedTuple):
    """A running node."""

    number: int
    name: str
    pid: int


def start_node(plan: LabPlan, number: int, *, folders: Sequence[str], files: Sequence[str]) -> Node:
    """Start a node; its network is still empty.

    Parameters
    ----------
    plan : LabPlan
        The lab.
    number : int
        Which node.
    folders, files : sequence of str
        Parts of the head's /tmp that the node sees (see `scratch`).

    Returns
    -------
    Node
        The node, its namespaces ready.

    Raises
    ------
    OSError
        If the kernel refuses one of the namespaces.
    """
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        _isolate(plan, number, folders, files, reading, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = dict(line.rstrip("\n").split(" ", 1) for line in pipe)
    os.waitpid(between, 0)  # gone; the node itself is now our child
    if answer.get("state") != "ready":
        raise OSError(f"node {number} did not start: {answer.get('state', 'no answer')}")
    return Node(number, plan.name(number), int(answer["pid"]))


def _isolate(
    plan: LabPlan,
    number: int,
    folders: Sequence[str],
    files: Sequence[str],
    reading: int,
    writing: int,
) -> None:
    """Enter new namespaces and leave a child there as first process."""
    os.close(reading)
    try:
        linux_namespaces.unshare(_OWN)
        pid = os.fork()
        if pid:
            os.write(writing, f"pid {pid}\n".encode())
            os.close(writing)
            os._exit(0)
        _furnish(plan, number, folders, files)
        _reap_for_ever(writing)
    except BaseException as wrong:
        os.write(writing, f"state {wrong}\n".encode())
        os._exit(1)


def _reap_for_ever(writing: int) -> None:
    """Say that the node is ready, then only collect orphans."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps for us
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(writing, b"state ready\n")
    null = os.open(os.devnull, os.O_RDWR)
    for handle in range(3):
        os.dup2(null, handle)
    os.closerange(3, 1024)
    while True:
        signal.pause()


def _furnish(plan: LabPlan, number: int, folders: Sequence[str], files: Sequence[str]) -> None:
    """Give the node its name and its own /proc, /dev/shm, /tmp, /sys."""
    name = plan.name(number)
    linux_namespaces.rename_process(f"lab-{name}")
    socket.sethostname(name)
    linux_namespaces.make_mounts_private()
    linux_namespaces.mount_fresh("proc", "/proc")
    furnish_folders(plan, folders, files)
    show_own_sys()


def furnish_folders(plan: LabPlan, folders: Sequence[str], files: Sequence[str]) -> None:
    """Replace /tmp, /dev/shm and /etc/hosts in this mount namespace.

    Parameters
    ----------
    plan : LabPlan
        The lab.
    folders, files : sequence of str
        Parts of the present /tmp that stay visible (see `scratch`).
    """
    scratch.replace_tmp(folders, files)
    linux_namespaces.mount_fresh("tmpfs", "/dev/shm", options="mode=1777")
    hosts = ["127.0.0.1 localhost", "10.77.0.254 head"]
    hosts += [f"{plan.address(node)} {plan.name(node)}" for node in range(plan.nodes)]
    table = scratch.OWN / "hosts"
    table.write_text("\n".join(hosts) + "\n")
    if Path("/etc/hosts").exists():
        linux_namespaces.bind(str(table), "/etc/hosts")


def show_own_sys() -> None:
    """Mount a /sys that shows this network namespace's interfaces.

    Some containers forbid it; then /sys goes on showing the machine's.
    """
    cgroups = os.open("/sys/fs/cgroup", os.O_PATH) if Path("/sys/fs/cgroup").is_dir() else None
    try:
        linux_namespaces.mount_fresh("sysfs", "/sys")
    except OSError:
        return
    finally:
        if cgroups is not None:
            with contextlib.suppress(OSError):
                linux_namespaces.bind(f"/proc/self/fd/{cgroups}", "/sys/fs/cgroup")
            os.close(cgroups)


def alive(node: Node) -> bool:
    """Say whether a node still runs; only the supervisor may ask.

    Parameters
    ----------
    node : Node
        The node.

    Returns
    -------
    bool
        False once it was killed.
    """
    return os.waitid(os.P_PID, node.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def processes(node: Node) -> list[int]:
    """List the processes of a node, its first one last.

    Parameters
    ----------
    node : Node
        The node.

    Returns
    -------
    list of int
        Process numbers as the head sees them; empty if the node is dead.
    """
    found = []
    space = _pid_namespace(node.pid)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and space is not None:
            pid = int(entry.name)
            if pid != node.pid and _pid_namespace(pid) == space:
                found.append(pid)
    return [*found, node.pid] if space is not None else []


def _pid_namespace(pid: int) -> str | None:
    """Name the process namespace of a process; None if it is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None
