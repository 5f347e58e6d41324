"""Long messages over slow links, cut so that the library need not ask first.

An MPI library sends a long message only after a handshake.  Over TCP the
answer queues behind whatever its sender is sending, so both directions starve
in turn: of 1 MiB exchanged by four nodes at 200 Mbit/s the wire carried 57 %,
of the same in pieces of 32 KiB, which need no handshake, 96 %.  Where links
are fast the handshake is cheap and saves a copy: there messages stay whole, up
to what MPI can count, see `closeranks.comms.mpi.message_limits`.
"""

from __future__ import annotations

from closeranks.comms.mpi import message_limits
from closeranks.comms.topology.topology import Topology

#: Below the eager limit of the TCP transports we know (64 KiB less a header).
PIECE_BYTES = 32 << 10
#: A link is slow if a piece takes it longer than this, in seconds.
SLOW_S = 100e-6


def piece_bytes(topology: Topology, rank: int, peer: int) -> int:
    """Return the longest message between two ranks, in bytes.

    The same seen from both ends, so that both cut a message alike.

    Parameters
    ----------
    topology : Topology
        With links agreed by all ranks.
    rank, peer : int
        The two ends.
    """
    level = topology.level_index(rank, peer)
    if level >= len(topology.levels) - 1:
        return message_limits.LONGEST
    rate = topology.link(rank, peer).bytes_per_s
    is_slow = rate and PIECE_BYTES / rate > SLOW_S
    return min(PIECE_BYTES, message_limits.LONGEST) if is_slow else message_limits.LONGEST
