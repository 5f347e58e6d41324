"""The ranks that share node memory, as the kernel sees them.

`MPI_Comm_split_type` repeats what the launcher knew when a process started.
It does not know processes that another process started later.  It counts
containers of one machine as one node, although each has its own /dev/shm.
"""

from __future__ import annotations

import socket
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from closeranks.comms.shm.node_identity import boot_id
from closeranks.comms.shm.shared_folder import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI


def split_by_node(comm: MPI.Intracomm, key: int = 0, *, enters: bool = True) -> MPI.Intracomm:
    """Make the communicator of the ranks that share node memory with this one.

    Collective over ``comm``: one all-gather of 8 bytes a rank, and one split.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks.
    key : int
        Orders the ranks of a node; ties keep the order they have in ``comm``.
    enters : bool
        Whether this rank joins it.

    Returns
    -------
    MPI.Intracomm
        To be freed by the caller; MPI.COMM_NULL if this rank does not join.
    """
    from mpi4py import MPI

    shares = np.empty(comm.size, np.uint64)
    comm.Allgather(node_memory_id(), shares)
    first = int(np.argmax(shares == shares[comm.rank]))
    node = comm.Split(first if enters else MPI.UNDEFINED, key)
    assert isinstance(node, MPI.Intracomm)
    return node


def node_memory_id(root: Path = ROOT) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Name the node memory that this process sees.

    Local.

    Parameters
    ----------
    root : Path
        The file system in memory.

    Returns
    -------
    ndarray, shape (1,), dtype uint64
        Equal for two processes if each sees files that the other makes there: one
        kernel, and the same folder of the same file system.  The host name must be
        equal too, so that emulated nodes are nodes.  Without such a folder the
        number is the same for all.
    """
    try:
        seen = root.stat()
        place = f"{seen.st_dev}:{seen.st_ino}"
    except OSError:  # no such folder: an error that `share` explains to all of the kernel
        place = ""
    kernel = f"{boot_id(Path('/'))}:{socket.gethostname()}"
    name = blake2b(f"{kernel}:{place}".encode(), digest_size=8).digest()
    return np.frombuffer(name, np.uint64)
