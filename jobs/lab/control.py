"""Killing and stopping nodes of a running lab.

The lab's supervisor answers on a TCP port of the lab's own network; no file
names it, so nothing is left when it is killed.  From outside, labs are found
by the name of their supervisor's process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from closeranks.errors import Error, UsageError
from closeranks.jobs.lab.node import Node, alive, processes
from closeranks.jobs.lab.plan import CONTROL_PORT, HEAD

PROCESS_NAME = "closeranks-lab"
_VARIABLE = "CLOSERANKS_LAB"


class Control:
    """Carries out what is asked about the nodes of one lab.

    Parameters
    ----------
    nodes : sequence of Node
        The nodes.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = tuple(nodes)
        self._killed: set[int] = set()

    def lost(self) -> list[str]:
        """Name the nodes that were killed or died.

        Returns
        -------
        list of str
            Host names; empty if all are well.
        """
        gone = [n for n in self._nodes if n.number in self._killed or not alive(n)]
        return [node.name for node in gone]

    def answer(self, request: str) -> str:
        """Carry out one request.

        Parameters
        ----------
        request : str
            ``kill N`` or ``stop N``.

        Returns
        -------
        str
            ``done``, or what is wrong.
        """
        verb, _, number = request.partition(" ")
        if not number.isdigit() or int(number) >= len(self._nodes):
            return f"no node {number}: this lab has nodes 0 to {len(self._nodes) - 1}"
        node = self._nodes[int(number)]
        if node.name in self.lost():
            return f"{node.name} is already dead"
        if verb == "kill":
            self._killed.add(node.number)
            os.kill(node.pid, signal.SIGKILL)
            return "done"
        if verb == "stop":
            # Twice: a process may have been born while the first were stopped.
            for _ in range(2):
                for pid in processes(node):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)
            return "done"
        return f"unknown request {verb}"

    def serve(self) -> None:
        """Answer requests in a thread of the supervisor, as long as it lives."""
        control = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                request = self.rfile.readline(100).decode(errors="replace").strip()
                self.wfile.write(control.answer(request).encode())

        server = socketserver.TCPServer((HEAD, CONTROL_PORT), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()


def ask(verb: str, node: int, *, lab: int | None = None) -> None:
    """Kill or stop a node, from inside its lab or from outside.

    Parameters
    ----------
    verb : str
        ``kill`` or ``stop``.
    node : int
        Its number.
    lab : int, optional
        From outside, the process number of the lab; needed if several run.

    Raises
    ------
    UsageError
        If there is no such lab, or several and `lab` is not given.
    Error
        If the lab refuses.
    """
    if _VARIABLE not in os.environ:
        _ask_from_outside(verb, node, choose_lab(running_labs(), lab))
        return
    host, _, port = json.loads(os.environ[_VARIABLE])["control"].partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(f"{verb} {node}\n".encode())
            said = connection.makefile().read()
    except OSError as cause:
        raise Error(f"{verb}-node", f"the lab does not answer ({cause})") from cause
    if said != "done":
        raise UsageError(f"{verb}-node", said, "see CLOSERANKS_LAB for what the lab has")


def running_labs() -> list[int]:
    """Find the labs of this user.

    Returns
    -------
    list of int
        Process numbers of their supervisors, oldest first.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name = (entry / "comm").read_bytes().strip()  # others may be called anything
            mine = os.geteuid() in (0, entry.stat().st_uid)
        except OSError:  # it ended while we looked
            continue
        if name == PROCESS_NAME.encode() and mine:
            found.append(int(entry.name))
    return sorted(found)


def choose_lab(labs: Sequence[int], asked: int | None) -> int:
    """Choose one of the running labs.

    Parameters
    ----------
    labs : sequence of int
        Their process numbers.
    asked : int or None
        The one the user named.

    Returns
    -------
    int
        A process number.

    Raises
    ------
    UsageError
        If the choice is not clear.
    """
    listed = ", ".join(map(str, labs))
    if asked is not None and asked not in labs:
        raise UsageError("lab", f"no lab {asked} runs here", f"running: {listed or 'none'}")
    if not labs:
        raise UsageError("lab", "no lab of yours runs here", "start one with closeranks lab")
    if asked is None and len(labs) > 1:
        raise UsageError("lab", f"{len(labs)} labs run here: {listed}", "choose one with --lab")
    return labs[0] if asked is None else asked


def _ask_from_outside(verb: str, node: int, supervisor: int) -> None:
    """Run the same verb inside the lab's network."""
    words = ["nsenter", "--target", str(supervisor), "--net"]
    if Path(f"/proc/{supervisor}/ns/user").readlink() != Path("/proc/self/ns/user").readlink():
        words += ["--user", "--preserve-credentials"]
    inside = {_VARIABLE: json.dumps({"control": f"{HEAD}:{CONTROL_PORT}"})}
    words += [sys.executable, "-m", "closeranks", "lab", f"{verb}-node", str(node)]
    done = subprocess.run(
        words, env={**os.environ, **inside}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = done.stderr.strip().removeprefix("closeranks: error: ")
        raise Error(f"lab {supervisor}", said or "nsenter failed")
