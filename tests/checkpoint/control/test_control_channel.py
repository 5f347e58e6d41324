"""What is raised for errors of the library, in the world of a talk and in later ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mpi4py import MPI

from closeranks.checkpoint.control.control_channel import ControlChannel
from closeranks.errors import PeerLost, Revoked


def test_who_is_late_does_not_give_up_a_world_that_has_come_meanwhile() -> None:
    told = PeerLost("checkpoint", [1])
    comm = SimpleNamespace(epoch=3, explained=lambda *_: told)
    channel = cast(Any, ControlChannel.__new__(ControlChannel))
    channel._comm, channel.epoch = comm, 3
    error = MPI.Exception(MPI.ERR_OTHER)
    assert channel._explained(error) is told
    comm.epoch = 4
    assert isinstance(channel._explained(error), Revoked)
