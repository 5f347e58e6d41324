"""Short messages from each rank to all others, received at any time.

MPI receives nothing while a rank computes or waits in one of its calls.  So a
thread of each process sleeps at a socket.  Inside a node that is a Unix
socket, which no network reaches.  Between nodes it is TCP: the sender tells
one rank of each other node, and that rank tells its own node.  A sender must
know a secret of the receiver.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from closeranks.comms.mpi.node_peers import node_memory_id
from closeranks.comms.shm.node_identity import boot_id, own_addresses

if TYPE_CHECKING:
    from mpi4py import MPI

_SECRET: Final = 16
#: Answer of a rank of another node.
_HEARD: Final = b"heard"
#: Largest message, in bytes.
_MOST: Final = 16384
#: Longest wait for the answer of one rank of another node, and of all nodes, in seconds.
_ANSWER_S, _ALL_S = 0.3, 1.0
#: Longest wait for room in the socket of a rank of this node, in seconds.
_TAKEN_S: Final = 0.05
#: Other nodes that are told at the same time.
_AT_A_TIME: Final = 32
#: Bytes of an IPv4 address, and addresses a rank.
_ADDRESS, _ADDRESSES = 4, 8


class Channel:
    """Sends short messages to all other ranks, and receives theirs.

    Collective over ``comm`` to make: one all-gather of 24 bytes a rank, and one
    more on several nodes.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks; not kept.
    hear : callable
        Takes a message of another rank, in the channel's thread.
    look : callable
        Called in that thread whenever it wakes; gives how long it may sleep, in
        seconds, None for ever.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        hear: Callable[[bytes], object],
        look: Callable[[], float | None],
    ) -> None:
        self._hear, self._look, self._process = hear, look, os.getpid()
        self._secret, self._closing = secrets.token_bytes(_SECRET), False
        self._socket = _bound(self._secret)
        self._server: socket.socket | None = None
        self._places: dict[int, tuple[list[str], int]] = {}
        self._divide(comm)
        self._thread = threading.Thread(target=self._listen, name="closeranks channel", daemon=True)
        self._thread.start()

    def _divide(self, comm: MPI.Intracomm) -> None:
        """Find the ranks of this node, and of the other nodes; collective."""
        mine = np.frombuffer(_place_here() + self._secret, np.uint8)
        every = np.empty((comm.size, mine.size), np.uint8)
        comm.Allgather(mine.copy(), every)
        nodes: dict[bytes, list[int]] = {}
        for rank, row in enumerate(every):
            nodes.setdefault(row[:-_SECRET].tobytes(), []).append(rank)
        self._secrets = [row[-_SECRET:].tobytes() for row in every]
        own = nodes.pop(mine[:-_SECRET].tobytes())
        self._peers = [rank for rank in own if rank != comm.rank]
        self._nodes = list(nodes.values())
        if self._nodes:
            self._open_server(comm)

    def _open_server(self, comm: MPI.Intracomm) -> None:
        """Listen for other nodes, and learn their addresses; collective."""
        words = b""
        with suppress(OSError):  # else a peer of this node receives the message
            self._server = socket.create_server(("", 0), backlog=64)
            found = own_addresses()[:_ADDRESSES]
            words = self._server.getsockname()[1].to_bytes(2, "big")
            words += b"".join(map(socket.inet_aton, found))
        mine = np.zeros(2 + _ADDRESS * _ADDRESSES, np.uint8)
        mine[: len(words)] = np.frombuffer(words, np.uint8)
        every = np.empty((comm.size, mine.size), np.uint8)
        comm.Allgather(mine, every)
        for rank, row in enumerate(every):
            port, rest = int.from_bytes(row[:2].tobytes(), "big"), row[2:].reshape(-1, _ADDRESS)
            if port:
                self._places[rank] = [socket.inet_ntoa(a.tobytes()) for a in rest if a.any()], port

    def tell(self, message: bytes) -> None:
        """Send a message to all other ranks; ranks that have ended are skipped.

        Local, any thread; takes a second at most.

        Parameters
        ----------
        message : bytes
            At most some thousands of bytes.
        """
        self._tell_peers(message)
        if self._nodes:
            self._tell_nodes(message)

    def _tell_nodes(self, message: bytes) -> None:
        """Tell the other nodes, several at a time."""
        callers = ThreadPoolExecutor(min(_AT_A_TIME, len(self._nodes)))
        try:
            wait([callers.submit(self._tell_node, node, message) for node in self._nodes], _ALL_S)
        except RuntimeError:  # the interpreter is ending: no new threads
            for node in self._nodes:
                self._tell_node(node, message)
        callers.shutdown(wait=False, cancel_futures=True)

    def _tell_peers(self, message: bytes) -> None:
        """Tell the other ranks of this node."""
        for rank in self._peers:
            _send(self._socket, _name(self._secrets[rank]), self._secrets[rank] + message)

    def _tell_node(self, ranks: Iterable[int], message: bytes) -> None:
        """Tell the first rank of another node that answers; it tells its own node."""
        for rank in ranks:
            addresses, port = self._places.get(rank, ([], 0))
            for address in addresses:
                if _call(address, port, self._secrets[rank] + message):
                    return

    def close(self) -> None:
        """Stop listening.  Local, harmless twice."""
        if not self._closing:
            self._closing = True
            self.wake()

    def wake(self) -> None:
        """Let the thread look at once.  Local."""
        if os.getpid() == self._process:
            _send(self._socket, _name(self._secret), b"")

    def _listen(self) -> None:
        """Receive messages until the channel is closed."""
        # Signals belong to the program: they have to wake its main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with ExitStack() as ends:
            found = ends.enter_context(selectors.DefaultSelector())
            for one, take in ((self._socket, self._take), (self._server, self._answer)):
                if one is not None:
                    ends.enter_context(one)
                    found.register(one, selectors.EVENT_READ, take)
            while not self._closing:
                for key, _ in found.select(self._look()):
                    with suppress(OSError):
                        key.data()

    def _take(self) -> None:
        """Take a message of a rank of this node."""
        self._heard(self._socket.recv(_MOST))

    def _answer(self) -> None:
        """Take a message of a rank of another node, and tell the peers of this node."""
        assert self._server is not None
        caller, _ = self._server.accept()
        with caller:
            caller.settimeout(_ANSWER_S)
            said = caller.recv(_MOST)
            if self._heard(said):
                caller.sendall(_HEARD)
                self._tell_peers(said[_SECRET:])

    def _heard(self, said: bytes) -> bool:
        """Take a message if its sender knows the secret; tell whether it does."""
        if not secrets.compare_digest(said[:_SECRET], self._secret):
            return False
        self._hear(said[_SECRET:])
        return True


def _place_here() -> bytes:
    """Digest of kernel, network and host name, which share Unix sockets."""
    network = Path("/proc/self/ns/net")
    seen = str(network.readlink()) if network.is_symlink() else ""
    words = f"{boot_id(Path('/'))}:{seen}:{node_memory_id().tobytes().hex()}"
    return blake2b(words.encode(), digest_size=8).digest()


def _name(secret: bytes) -> str:
    """Name the Unix socket of a secret's owner; no file, it ends with its process."""
    return "\0closeranks-" + blake2b(secret, digest_size=16).hexdigest()


def _bound(secret: bytes) -> socket.socket:
    own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    own.bind(_name(secret))
    return own


def _send(own: socket.socket, name: str, data: bytes) -> None:
    """Send to a socket of this node, which may be full or closed."""
    until_s = time.monotonic() + _TAKEN_S
    while time.monotonic() < until_s:
        try:
            own.sendto(data, socket.MSG_DONTWAIT, name)
        except BlockingIOError:
            time.sleep(1e-3)
        except OSError:
            return
        else:
            return


def _call(address: str, port: int, data: bytes) -> bool:
    """Send bytes to an address; tell whether they were heard."""
    with suppress(OSError), socket.create_connection((address, port), timeout=_ANSWER_S) as call:
        call.sendall(data)
        return call.recv(len(_HEARD)) == _HEARD
    return False
