"""Memory before a call and after it."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from tests.fuzz.buffers import Side
from tests.fuzz.elements import KINDS, Bytes, meant
from tests.fuzz.reference import Pair
from tests.fuzz.shapes import REDUCING, Step


def put(sides: Pair, given: list[Bytes | None]) -> None:
    for side, data in zip(sides, given, strict=True):
        if side is not None and data is not None:
            side.window[:] = data


def finish(request: Any, how: str) -> None:
    """Wait in one of the ways there are."""
    if how == "test":
        while not request.test():
            pass
    elif how == "Waitall":
        MPI.Request.Waitall([request])
    else:
        getattr(request, how)()


def is_equal_in_meaning(step: Step, side: Side, want: Bytes, count: int | None) -> bool:
    """Compare where bytes mean nothing: padding, what is left of an input in place."""
    got = side.window.copy()
    ours, theirs = side.look(got), side.look(want)
    if count is not None:
        ours[count:] = theirs[count:]
    mask = meant(KINDS[step["kind"]]) if step["op"] in REDUCING else None
    if mask is not None and bool((ours == theirs).all()):
        ours[...] = 0
        want = want.copy()
        side.look(want)[...] = 0
        got, want = (_without(mask, side.look(one), one) for one in (got, want))
    return np.array_equal(got, want)


def _without(mask: Any, entries: Any, window: Bytes) -> Bytes:
    """Put zeros where elements that lie side by side mean nothing."""
    if entries.flags.c_contiguous:
        entries.view(np.uint8).reshape(-1, len(mask))[:, ~mask] = 0
    else:
        window[:] = 0  # equal in all that was looked at
    return window
