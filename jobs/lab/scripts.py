"""The two small shell scripts of a lab: its ssh, and what precedes a rank."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from closeranks.jobs.lab.node import Node
from closeranks.jobs.lab.plan import LabPlan
from closeranks.jobs.lab.scratch import OWN

AGENT = str(OWN / "agent")
RANK = str(OWN / "rank")


def agent(nodes: Sequence[Node], folder: str) -> str:
    """Write what launchers call in the place of ssh.

    Parameters
    ----------
    nodes : sequence of Node
        The nodes of the lab.
    folder : str
        Where commands start.

    Returns
    -------
    str
        A shell script, called as ``agent [-options] HOST COMMAND...``.
    """
    cases = "\n".join(f"  {node.name}|*@{node.name}) pid={node.pid} ;;" for node in nodes)
    return f"""#!/bin/sh
# agent [-options] HOST COMMAND...: runs COMMAND on a node of the lab, as ssh would.
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1
shift
case $host in
{cases}
  *) echo "no node $host in this lab" >&2; exit 255 ;;
esac
exec nsenter --target "$pid" --mount --uts --ipc --net --pid \\
  sh -c "cd {shlex.quote(folder)} 2>/dev/null; $*"
"""


def rank(plan: LabPlan, node: int) -> str:
    """Write what is executed before the program on every rank of a node.

    Parameters
    ----------
    plan : LabPlan
        The lab.
    node : int
        The node's number.

    Returns
    -------
    str
        A shell script, called as ``rank PROGRAM ARGUMENTS...``.
    """
    lines = [
        "#!/bin/sh",
        "# rank PROGRAM...: what a rank must know about the node it runs on.",
        "# Open MPI's daemon may miss the end of a program that ends at once, and wait for ever.",
        '[ -n "$OMPI_COMM_WORLD_RANK" ] && sleep 0.1',
    ]
    if plan.sites > 1:
        lines.append(f"export CLOSERANKS_SITE=site{plan.site(node)}")
    if plan.nics > 1:
        lines += [
            "# A rail is a rank: local rank k talks through NIC k modulo the number of NICs.",
            "local_rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}",
            f"nic=eth$((local_rank % {plan.nics}))",
            "export CLOSERANKS_NIC=$nic OMPI_MCA_btl_tcp_if_include=$nic",
            "export FI_TCP_IFACE=$nic UCX_NET_DEVICES=$nic",
        ]
    return "\n".join([*lines, 'exec "$@"', ""])


def write(path: str, text: str, *, root: str = "") -> None:
    """Write an executable script.

    Parameters
    ----------
    path : str
        Where, as its users see it.
    text : str
        The script.
    root : str, optional
        The root folder of the node, ``/proc/PID/root``.
    """
    file = Path(root + path)
    file.write_text(text)
    os.chmod(file, 0o755)  # noqa: PTH101
