"""Agreement on flags among the living ranks.

An agreement ends only if all ranks have the same view of the living.  If a
connection between two nodes breaks while both ranks live, each rank takes the
other for dead, and Open MPI 5.0.11 tells only their own nodes.  A rank that
waits long therefore reports its dead to all nodes.  Both ranks have to end
then, and the others go on.

The other ranks hear of the two deaths one after the other, which must do no
harm.  So agreements use a star, see
`closeranks.jobs.launch.openmpi_mpirun.parameters`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from closeranks.comms.liveness.peer_watch import peers
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.mpi_handle import ranks_in
from closeranks.comms.mpi.mpi_lock import TURN
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import Revoked

if TYPE_CHECKING:
    from mpi4py import MPI

#: Bits of pending agreements.
_asked: Final[dict[int, array[int]]] = {}
#: How long a rank waits for others before it calls ``on_wait``, seconds.
_PATIENCE_S: Final = 1.0


def agree(
    comm: MPI.Intracomm,
    flags: int,
    *,
    unless: Sequence[MPI.Comm] = (),
    on_wait: Callable[[], object] | None = None,
    waits: Callable[[Callable[[], bool]], object] = wait,
) -> tuple[int, bool]:
    """Agree on flags among the living ranks.  Collective, revoked or not.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks.
    flags : int
        Bits.
    unless : sequence of MPI.Comm
        Other ranks revoke one of them if they will not take part; this process has
        to end then.
    on_wait : callable, optional
        Called once a second while this rank waits for others.
    waits : callable, optional
        Waits for the condition it is given.

    Returns
    -------
    agreed : int
        The bits that every survivor has set; the same on all of them.
    died : bool
        Whether ranks have died that no earlier agreement on this communicator has
        reported; the same on all survivors.

    Raises
    ------
    Revoked
        If one of ``unless`` is.
    """
    from mpi4py import MPI

    died = False
    while True:
        try:
            return _agreed(comm, flags, unless, on_wait, waits), died
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_PROC_FAILED:
                raise
            died = True
            comm.Ack_failed()


def _agreed(
    comm: MPI.Intracomm,
    flags: int,
    unless: Sequence[MPI.Comm],
    on_wait: Callable[[], object] | None,
    waits: Callable[[Callable[[], bool]], object],
) -> int:
    """Agree once; other threads may call MPI meanwhile."""
    from mpi4py import MPI

    bits = array("i", [flags])
    patience = Deadline(_PATIENCE_S)
    _asked[id(bits)] = bits  # the library writes there even if an error ends the wait
    with TURN:
        request = comm.Iagree(bits)

    def is_over() -> bool:
        try:
            with TURN:
                over = request.Test()
        except MPI.Exception:
            _asked.pop(id(bits), None)
            raise
        if over:
            _asked.pop(id(bits), None)
        if not over and any(map(ulfm.is_revoked, unless)):
            raise Revoked("an agreement")
        nonlocal patience
        if not over and patience.expired:
            patience = Deadline(_PATIENCE_S)
            _spread(comm)
            if on_wait is not None:
                on_wait()
        return over

    waits(is_over)
    return bits[0]


def _spread(comm: MPI.Intracomm) -> None:
    """Tell all nodes which ranks the library counts as dead here."""
    from mpi4py import MPI

    from closeranks.comms.mpi.mpi_handle import WORLD

    dead = ulfm.failed(comm)
    if dead:
        names = ranks_in(comm, WORLD)
        peers().report_dead(names[rank] for rank in dead if names[rank] != MPI.UNDEFINED)
