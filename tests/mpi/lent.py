"""Ranks that have a device, one that forgives nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mpi4py import MPI

import closeranks as cr
from closeranks.comms.gpu.array_interface import install
from tests.fake_device import FakeArray, FakeDevice

#: Which buffers lie on the device: those sent, those received, all, those of odd ranks.
PLACES = ["sent", "received", "all", "odd"]


class Lent(NamedTuple):
    """A communicator of ranks that have a device."""

    comm: cr.Communicator
    fake: FakeDevice


def lend(comm: MPI.Intracomm | None, fake: FakeDevice, **options: Any) -> Iterator[Lent | None]:
    if comm is None:
        yield None
        return
    remove = install(fake)
    fake.comm = comm
    try:
        with cr.init(comm, **options) as opened:
            yield Lent(opened, fake)
    finally:
        remove()


def values(array: Any) -> list[Any]:
    found: list[Any] = (array.get() if isinstance(array, FakeArray) else array).tolist()
    return found
