"""The life of a lab: one process tree in namespaces of its own.

The calling process forks a keeper, which leaves the machine's namespaces and
forks the supervisor, process 1 of the lab.  Each dies with its parent, and
everything in the lab dies with process 1, so a SIGKILL anywhere leaves no
process, interface, mount or file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import click

from closeranks.errors import Error, Unavailable
from closeranks.jobs.lab import control, network, scratch, scripts
from closeranks.jobs.lab.node import Node, furnish_folders, show_own_sys, start_node
from closeranks.jobs.lab.plan import HEAD, LAUNCHER_SUBNET, SUBNET, LabPlan
from closeranks.jobs.launch import linux_namespaces
from closeranks.jobs.launch.job_description import Host, Job, NodeReach

# Variables of batch systems; of SLURM's, where its configuration is says nothing of a job.
_BATCH = ("SLURM_", "SLURMD_", "PBS_", "LSB_", "PE_HOSTFILE")
_KEPT = ("SLURM_CONF",)
_NAMESPACES = (
    linux_namespaces.MOUNT
    | linux_namespaces.UTS
    | linux_namespaces.IPC
    | linux_namespaces.NET
    | linux_namespaces.PID
)


def describe(plan: LabPlan, *, cores: int) -> Job:
    """Describe the job that fills a lab.

    Parameters
    ----------
    plan : LabPlan
        The lab.
    cores : int
        Usable cores of this machine, shared by all nodes.

    Returns
    -------
    Job
        The job.
    """
    hosts = tuple(Host(plan.name(node), slots) for node, slots in enumerate(plan.slots))
    reach = NodeReach(
        agent=scripts.AGENT,
        hostfile=str(scratch.OWN / "hostfile"),
        head=HEAD,
        launcher_network=LAUNCHER_SUBNET,
        network=SUBNET,
        prefix=(scripts.RANK,),
    )
    return Job(
        plan.ranks,
        hosts=hosts,
        order=plan.order,
        crowded=plan.ranks > cores,
        root=True,
        reach=reach,
    )


def inhabit(
    plan: LabPlan, words: Sequence[str], task: Callable[[], int], *, check: bool = True
) -> int:
    """Build a lab, run a task at its head, take the lab down.

    Parameters
    ----------
    plan : LabPlan
        The lab.
    words : sequence of str
        The program that will run, for the files it names.
    task : callable
        Called at the head once everything stands; gives an exit status.
    check : bool, optional
        Measure the wires first.

    Returns
    -------
    int
        The task's exit status; 1 if the lab could not be built.
    """
    parent = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        _end_with(lambda: _keep(parent, lambda: _supervise(plan, words, task, check)))
    return _wait(keeper)


def _keep(parent: int, supervise: Callable[[], int]) -> int:
    """Leave the machine's namespaces; everything below is the lab."""
    try:
        try:
            linux_namespaces.unshare(_NAMESPACES)
        except PermissionError:
            linux_namespaces.become_root()
            linux_namespaces.unshare(_NAMESPACES)
    except OSError as cause:
        raise Unavailable(
            f"the emulated cluster ({cause})",
            "run as root, or allow user namespaces (sysctl user.max_user_namespaces, "
            "kernel.apparmor_restrict_unprivileged_userns=0)",
        ) from cause
    linux_namespaces.die_with_parent()
    if os.getppid() != parent:
        return 1
    supervisor = os.fork()
    if supervisor == 0:
        linux_namespaces.die_with_parent()
        _end_with(supervise)
    return _wait(supervisor)


def _supervise(plan: LabPlan, words: Sequence[str], task: Callable[[], int], check: bool) -> int:
    """Be process 1 of the lab."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # else process 1 hears neither
        signal.signal(number, _leave)
    linux_namespaces.rename_process(control.PROCESS_NAME)
    folders, files = scratch.shared_folders(words), scratch.loose_files(words)
    outside = os.open(scratch.TMP, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    before = scratch.times(files, outside)
    linux_namespaces.make_mounts_private()
    linux_namespaces.mount_fresh("proc", "/proc")
    socket.sethostname("head")
    furnish_folders(plan, folders, files)
    show_own_sys()
    nodes = [start_node(plan, node, folders=folders, files=files) for node in range(plan.nodes)]
    network.build(plan, nodes)
    if check:
        for line in network.check(plan, nodes):
            click.echo(f"lab: {line}", err=True)
    copy_buffer = control.Control(nodes)
    copy_buffer.serve()
    _write_scripts(plan, nodes)
    _leave_allocation()
    os.environ.update(CLOSERANKS_LAB=plan.to_json(), TMPDIR=str(scratch.TMP))
    try:
        return _judge(task(), copy_buffer.lost())
    finally:
        roots = [f"/proc/{node.pid}/root" for node in nodes]
        try:
            for name in scratch.hand_back(before, [*roots, ""], outside):
                kept = f"{scratch.TMP}/{name}"
                click.echo(
                    f"lab: {kept} was written outside; what is new is in {kept}.lab", err=True
                )
        except OSError as problem:
            click.echo(f"lab: a file for /tmp is lost with the lab: {problem}", err=True)


def _leave_allocation() -> None:
    """Forget the batch job that this runs in: launchers would look for its nodes."""
    for name in list(os.environ):
        if name.startswith(_BATCH) and name not in _KEPT:
            del os.environ[name]


def _judge(status: int, lost: Sequence[str]) -> int:
    """Correct a launcher that calls the loss of a node a success."""
    if status == 0 and lost:
        click.echo(f"lab: {', '.join(lost)} was killed during the job", err=True)
        return 1
    return status


def _write_scripts(plan: LabPlan, nodes: Sequence[Node]) -> None:
    """Put the scripts where the launcher and the ranks look for them."""
    agent = scripts.agent(nodes, str(Path.cwd()))
    scripts.write(scripts.AGENT, agent)
    for node in nodes:
        root = f"/proc/{node.pid}/root"
        scripts.write(scripts.AGENT, agent, root=root)  # Open MPI's daemons look for it
        scripts.write(scripts.RANK, scripts.rank(plan, node.number), root=root)


def _end_with(body: Callable[[], int]) -> None:
    """End this forked process with the status of a function."""
    status = 1
    try:
        status = body()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except Error as wrong:
        click.echo(f"closeranks: error: {wrong}", err=True)
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _leave(number: int, frame: FrameType | None) -> None:
    """Turn a signal into an orderly end."""
    del frame
    raise SystemExit(128 + number)


def _wait(child: int) -> int:
    """Wait for a child; what asks us to end, asks it."""

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    before = {n: signal.signal(n, forward) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status if status >= 0 else 128 - status
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
