"""What a call runs in Python: few functions, in few files, with few ways back."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr

PROGRAM = Path(__file__).resolve().parents[2] / "docs" / "internals" / "trip.py"
#: Most calls, files, and returns to a file that the call has been in before.
MOST = {"ring": (85, 14, 15), "auto": (85, 16, 15), "gaps": (10, 8, 3)}
#: Most calls in a race: of the library's turn, and of the kernel's.
MOST_TRIED = {"native": 25, "shared": 25}


@pytest.fixture(scope="module")
def trip() -> Any:
    """The program that counts, as a module."""
    spec = importlib.util.spec_from_file_location("trip", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["trip"] = module  # where `NamedTuple` looks for its module
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="others count other calls")
@pytest.mark.parametrize("algorithm", sorted(MOST))
def test_the_third_call_runs_few_functions(
    world: cr.Communicator | None, trip: Any, algorithm: str
) -> None:
    if world is None or world.size != 2:  # as many ranks as the numbers are for
        return
    found = trip.trip_of(trip.third_call(world, algorithm))
    calls, files, returns = MOST[algorithm]
    assert found.calls <= calls
    assert found.files <= files
    assert found.returns <= returns


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="others count other calls")
def test_a_call_of_a_race_runs_few_functions(world: cr.Communicator | None, trip: Any) -> None:
    if world is None or world.size != 2:
        return
    found = trip.tried_calls(world)
    assert "native" in found
    for name, most in MOST_TRIED.items():
        assert len(found.get(name, ())) <= most, name


def test_an_algorithm_that_fits_one_op_is_asked_again_for_another(
    world: cr.Communicator | None,
) -> None:
    if world is None or world.size == 1:
        return

    def add(source: Any, target: Any, _: MPI.Datatype) -> None:
        np.frombuffer(target)[:] += np.frombuffer(source)

    ops = [MPI.Op.Create(add, commute=commutes) for commutes in (True, False)]
    given, taken = np.full(8, world.rank + 1.0), np.empty(8)
    for _ in range(3):
        world.Allreduce(given, taken, ops[0], algorithm="ring")
        assert (taken == world.size * (world.size + 1) / 2).all()
        with pytest.raises(cr.UsageError, match="cannot"):
            world.Allreduce(given, taken, ops[1], algorithm="ring")
    for op in ops:
        op.Free()


def test_arrays_of_one_size_and_other_forms_are_read_anew(world: cr.Communicator | None) -> None:
    if world is None:
        return
    total, taken = world.size, np.zeros((4, 2))
    gaps, flat = np.ones((4, 4))[:, ::2], np.ones(8)
    forms = (
        flat,
        gaps,
        flat.reshape(2, 4),
        np.asfortranarray(np.ones((4, 2))),
        [flat, 8, MPI.DOUBLE],
    )
    for _ in range(3):
        for form in forms:
            taken[:] = 0
            world.Allreduce(form, taken, algorithm="ring")
            assert (taken == total).all()
    with pytest.raises(cr.UsageError, match="read-only"):
        world.Allreduce(flat, np.broadcast_to(taken, (4, 2)), algorithm="ring")
    world.Allreduce(np.empty(0), np.empty(0), algorithm="ring")
