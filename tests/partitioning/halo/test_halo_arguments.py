"""What a halo is asked for: read, or refused with the values and the way out."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from closeranks.errors import UsageError
from closeranks.partitioning import Broadcast, Layout, Mesh, Partial, Split
from closeranks.partitioning.halo.ghosts import Ghosts
from closeranks.partitioning.halo.halo_arguments import (
    check_array,
    check_numbers,
    digest_of,
    read_ghosts,
)

MESH = Mesh({"a": 2, "b": 2})
LAYOUT = Layout((6, 4), [Split(0), Split(1)], mesh=MESH)


@pytest.mark.parametrize(
    ("width", "widths"),
    [
        (2, ((2, 2), (2, 2))),
        (np.int8(1), ((1, 1), (1, 1))),
        (np.array(1), ((1, 1), (1, 1))),
        ([1, 0], ((1, 1), (0, 0))),
        ([(1, 2), 3], ((1, 2), (3, 3))),
        (np.array([[1, 2], [0, 4]]), ((1, 2), (0, 4))),
    ],
)
def test_widths_are_read(width: Any, widths: Any) -> None:
    assert read_ghosts(LAYOUT, width, False, True).widths == widths


def test_rings_are_read() -> None:
    assert read_ghosts(LAYOUT, 1, True, True).periodic == (True, True)
    assert read_ghosts(LAYOUT, 1, [False, 1], True).periodic == (False, True)
    assert read_ghosts(LAYOUT, [6, 9], (True, False), True).widths == ((6, 6), (9, 9))


@pytest.mark.parametrize(
    ("width", "periodic", "said"),
    [
        (-1, False, "-1"),
        ([1, (2, -3)], False, "-3"),
        (1.5, False, "1.5"),
        ("12", False, "'12'"),
        ([1, 1, 1], False, "3 widths for 2 array axes"),
        ([(1, 1, 1), 1], False, "(1, 1, 1)"),
        (1, [True], "1 values of periodic for 2 array axes"),
        (1, np.array([[True, False]] * 2), "a value of periodic is array([ True, False])"),
        ([1, 5], True, "width 5 on periodic axis 1, which has 4 cells; give at most 4"),
        ([(0, 7), 1], (True, False), "width 7 on periodic axis 0"),
    ],
)
def test_what_does_not_fit_is_named(width: Any, periodic: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_ghosts(LAYOUT, width, periodic, True)
    assert said in str(caught.value)


def test_corners_are_a_truth() -> None:
    with pytest.raises(UsageError, match="corners is array"):
        read_ghosts(LAYOUT, 1, False, np.array([True, False]))


def test_layouts_that_have_no_values() -> None:
    with pytest.raises(UsageError, match="convert it first with redistribute"):
        read_ghosts(Layout((6, 4), [Split(0), Partial()], mesh=MESH), 1, False, True)
    with pytest.raises(UsageError, match="layout is"):
        read_ghosts((6, 4), 1, False, True)


def test_digests_tell_arguments_apart() -> None:
    swapped = Mesh({"a": 2, "b": 2}, order=[[0, 2], [1, 3]])
    cut = Layout((6, 4), [Split(0), Split(1)], mesh=MESH, cuts={0: [0, 1, 6]})
    asked = [
        (LAYOUT, 1, False, True), (LAYOUT, 1, False, False), (LAYOUT, 1, True, True),
        (LAYOUT, (1, 2), False, True), (cut, 1, False, True),
        (Layout((6, 4), [Split(0), Split(1)], mesh=swapped), 1, False, True),
        (Layout((6, 4), [Split(0), Broadcast()], mesh=MESH), 1, False, True),
    ]  # fmt: skip
    digests = [digest_of(read_ghosts(*one)) for one in asked]
    assert len(set(digests)) == len(asked)
    assert max(digests) < 2**53
    assert digests == [digest_of(read_ghosts(*one)) for one in asked]


def test_arrays_are_checked() -> None:
    check_array("exchange", np.zeros((3, 2), order="F"), (3, 2))
    fixed = np.broadcast_to(np.zeros(2), (3, 2))
    for wrong in (np.zeros((2, 3)), fixed, np.zeros((3, 2), object), [[0, 0]] * 3):
        with pytest.raises(UsageError, match="exchange"):
            check_array("exchange", wrong, (3, 2))
    for name in ("f2", "f8", "c8", "u1", ">i4", ml_dtypes.bfloat16):
        check_numbers("reduce", np.dtype(name))
    for name in ("?", "S3", "M8[s]", "V8", "f8,i4"):
        with pytest.raises(UsageError, match="no sum"):
            check_numbers("reduce", np.dtype(name))


@pytest.mark.parametrize(
    ("axis", "widths", "run"),
    [(0, (0, 0, 0), 48), (0, (0, 0, 1), 6), (1, (0, 0, 0), 6), (1, (0, 1, 0), 6), (2, (0,) * 3, 1)],
)
def test_runs_of_a_face(axis: int, widths: tuple[int, ...], run: int) -> None:
    layout = Layout((4, 8, 6), [Split(axis)], mesh=Mesh({"a": 2}))
    sides = [(max(width, at == axis),) * 2 for at, width in enumerate(widths)]
    ghosts = Ghosts(layout, sides, [False] * 3, corners=True)
    copies = [one for one in ghosts.received(0) if one.peer == 1]
    assert ghosts.shortest_run(1, 0, copies) == run
