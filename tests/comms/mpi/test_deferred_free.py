"""What is buried is freed at the end, where processes of several starts have met."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from closeranks.comms.mpi import deferred_free, ulfm
from closeranks.comms.mpi.mpi_handle import number


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_free, "_deferred", {})
    monkeypatch.setattr(deferred_free._End, "frees", True)


def test_a_communicator_deferred_twice_is_freed_once() -> None:
    made = MPI.COMM_SELF.Dup()
    deferred_free.defer(made)
    deferred_free.defer(MPI.Intracomm(made))
    deferred_free.defer(MPI.COMM_NULL)
    deferred_free._free()
    assert not deferred_free._deferred


def test_an_object_may_stand_for_another_one_afterwards() -> None:
    made, other = MPI.COMM_SELF.Dup(), MPI.COMM_SELF.Dup()
    deferred_free.defer(made)
    assert list(deferred_free._deferred) == [number(made)]
    assert number(deferred_free._deferred[number(made)]) != number(other)
    deferred_free._free()
    other.Barrier()
    other.Free()


def test_it_is_left_to_the_library_where_all_were_started_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deferred_free._End, "frees", False)
    made = MPI.COMM_SELF.Dup()
    deferred_free.defer(made)
    deferred_free._free()
    made.Barrier()
    made.Free()


@pytest.mark.parametrize("is_dead", [False, True])
@pytest.mark.parametrize("disconnects", [False, True])
def test_where_ranks_have_died_the_number_is_kept(
    monkeypatch: pytest.MonkeyPatch, is_dead: bool, disconnects: bool
) -> None:
    monkeypatch.setattr(ulfm, "is_on", lambda: True)
    monkeypatch.setattr(ulfm, "failed", lambda _: (0,) if is_dead else ())
    made = MPI.COMM_SELF.Dup()
    deferred_free.free_or_defer(made, disconnects=disconnects)
    assert made == MPI.COMM_NULL
    assert bool(deferred_free._deferred) is is_dead
    deferred_free._free()
