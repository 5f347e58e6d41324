"""A library that does what a test says: both interpreters talk to it, and it keeps a log.

A message completes when it has been looked at as often as its tag says; what is
received follows from the tag.  Two interpreters that do the same in the same
order leave the same log and the same memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from closeranks.collectives.engine import bound_plan, execution, execution_arrays
from closeranks.collectives.engine import loop_mpi_functions as real
from closeranks.collectives.engine.execution_arrays import handle
from closeranks.collectives.engine.loop_mpi_functions import address, error_place, is_wide, pointers
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology

PIECE = 16
_HANDLE: Any = ctypes.c_int64 if is_wide() else ctypes.c_int32
_A, _I = ctypes.c_int64, ctypes.c_int32
_POST = ctypes.CFUNCTYPE(_I, _A, _I, _HANDLE, _I, _I, _HANDLE, _A)
_TEST = ctypes.CFUNCTYPE(_I, _I, _A, _A, _A, _A)


class Message:
    """One message under way."""

    def __init__(self, log: list[Any], sending: bool, spot: int, nbytes: int, tag: int) -> None:
        self.log, self.sending, self.tag = log, sending, tag
        self.memory = np.empty(0, np.uint8)
        if nbytes:
            self.memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(spot))
        self.looks = 0
        self.breaks = False

    def Cancel(self) -> None:
        """Note that it was cancelled."""
        self.log.append(("cancel", self.tag))

    def Test(self) -> bool:
        """Look at it; what is received is there when it has completed."""
        self.looks += 1
        if self.looks <= self.tag % 5:
            return False
        if self.breaks:
            raise MPI.Exception(MPI.ERR_TRUNCATE)
        if not self.sending:
            self.memory[:] = (self.tag * 7 + np.arange(len(self))) % 9
        return True

    def __len__(self) -> int:
        return len(self.memory)


class Library:
    """What the Python interpreter finds as ``world.traffic``, and the C functions.

    ``fails`` names a tag whose message cannot be posted, ``breaks`` one whose message
    ends with an error.
    """

    def __init__(self, fails: int = -1, breaks: int = -1) -> None:
        self.log: list[Any] = []
        self.fails, self.breaks = fails, breaks
        self.handle = MPI.COMM_SELF.handle
        self._messages: dict[int, Message] = {}
        self._kept = (_POST(self._isend), _POST(self._irecv), _TEST(self._testsome))

    def _post(self, sending: bool, spot: int, nbytes: int, peer: int, tag: int) -> Message | None:
        given = bytes((ctypes.c_uint8 * nbytes).from_address(spot)) if sending and nbytes else b""
        self.log.append(("send" if sending else "receive", peer, tag, nbytes, given))
        message = Message(self.log, sending, spot, nbytes, tag)
        message.breaks = tag == self.breaks
        return None if tag == self.fails else message

    def Isend(self, spec: Any, peer: int, tag: int) -> Message:
        """Post as mpi4py does."""
        return self._in_python(True, spec, peer, tag)

    def Irecv(self, spec: Any, peer: int, tag: int) -> Message:
        """Post as mpi4py does."""
        return self._in_python(False, spec, peer, tag)

    def _in_python(self, sending: bool, spec: Any, peer: int, tag: int) -> Message:
        message = self._post(sending, spec[0].address, spec[1], peer, tag)
        if message is None:
            raise MPI.Exception(MPI.ERR_OTHER)
        return message

    def _isend(self, spot: int, n: int, _d: int, peer: int, tag: int, _c: int, at: int) -> int:
        return self._in_c(self._post(True, spot, n, peer, tag), at)

    def _irecv(self, spot: int, n: int, _d: int, peer: int, tag: int, _c: int, at: int) -> int:
        return self._in_c(self._post(False, spot, n, peer, tag), at)

    def _in_c(self, message: Message | None, at: int) -> int:
        if message is None:
            return MPI.ERR_OTHER
        number = 4096 + len(self.log)
        self._messages[number] = message
        _HANDLE.from_address(at).value = number
        return MPI.SUCCESS

    def _testsome(self, n: int, requests: int, count: int, indices: int, statuses: int) -> int:
        given, said = (_HANDLE * n).from_address(requests), MPI.SUCCESS
        size, place_of_error = error_place()
        errors = (_I * (n * size)).from_address(statuses)
        arrived: list[int] = []
        # The last first, as the reference looks at them: where two messages arrive in one
        # place, which MPI forbids and random plans do, the order shows.
        for place in reversed(range(n)):
            error = MPI.SUCCESS
            try:
                if not self._messages[given[place]].Test():
                    continue
            except MPI.Exception:
                said, error = MPI.ERR_IN_STATUS, MPI.ERR_TRUNCATE
            errors[len(arrived) * size + place_of_error] = error
            arrived.append(place)
            given[place] = handle(MPI.REQUEST_NULL)
        (_I * n).from_address(indices)[: len(arrived)] = arrived  # type: ignore[assignment]
        _I.from_address(count).value = len(arrived)
        return said

    def pointers(self) -> real.Pointers:
        """The C functions, some of them the real ones."""
        isend, irecv, testsome = map(address, self._kept)
        return pointers()._replace(isend=isend, irecv=irecv, testsome=testsome)


@contextmanager
def pretended(
    patch: pytest.MonkeyPatch, *, fails: int = -1, breaks: int = -1
) -> Iterator[tuple[Any, Library]]:
    """Give a world of two ranks, far apart, whose messages are pretended."""
    library = Library(fails, breaks)
    topology = Topology.regular(node=2, rank=1).with_links({"node": Link(1e-3, 1000.0)})
    world = SimpleNamespace(
        traffic=library,
        topology=topology,
        rank=0,
        size=2,
        first_tag=lambda sequence: sequence << 10,
        window=1 << 30,
        undrained={},
    )
    with patch.context() as inner:
        inner.setattr(execution, "_FEW", 10**9)
        inner.setattr(bound_plan, "PIECE_BYTES", PIECE)
        inner.setattr(execution_arrays, "pointers", library.pointers)
        yield world, library
