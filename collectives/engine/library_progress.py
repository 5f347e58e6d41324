"""How the library gets to work while a rank waits for what calls nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from closeranks.collectives.plans import message_tags
from closeranks.comms.mpi import ulfm

if TYPE_CHECKING:
    from closeranks.collectives.engine.epoch_world import World


def let_work(world: World) -> None:
    """Let the library serve other ranks, their one-sided calls among it.

    Local; a probe, which takes 1 to 2 us.

    Parameters
    ----------
    world : World
        Whose kernels are waited for.
    """
    if ulfm.is_on():  # there a probe of others raises the news of their death
        ulfm.listen()
    elif not (world.closed or world.revoked):
        # MPICH serves nobody in a probe for messages to itself.
        world.traffic.Iprobe(MPI.ANY_SOURCE, message_tags.farewell(world.window))
