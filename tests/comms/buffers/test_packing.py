"""Copies past the caches, from any strides to any strides."""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.comms.buffers import packing

RNG = np.random.default_rng(7)


@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((300, 1000), (slice(7, 290), slice(3, 903))),
        ((300, 1000), (slice(290, 7, -1), slice(3, 903))),
        ((20, 30, 700), (slice(1, 19), slice(2, 27, 3), slice(5, 677))),
        ((4, 20, 9, 700), (slice(None, None, 2), slice(1, 19, 2), slice(2, 8, 2), slice(1, 600))),
        ((3, 4, 20, 9, 100), (slice(1, 3), slice(1, 3), slice(1, 19, 2), slice(2, 8, 2), slice(9))),
        ((40000,), (slice(3, 39001),)),
        ((40000,), (slice(3, 39001, 2),)),
        ((1, 40000), (slice(None), slice(1, 39001))),
        ((0, 40000), (slice(None), slice(1, 39001))),
    ],
)
@pytest.mark.parametrize("kind", ["u1", "f4", "f8", "V24"])
def test_the_same_is_copied_and_nothing_else(
    shape: tuple[int, ...], index: tuple[slice, ...], kind: str
) -> None:
    size = np.dtype(kind).itemsize
    room, from_ = (RNG.integers(0, 255, (*shape, size), np.uint8) for _ in range(2))
    target, source = (one.view(kind)[..., 0] for one in (room, from_))
    wanted = room.copy().view(kind)[..., 0]
    wanted[index] = source[index]
    for origin in (source[index], np.asfortranarray(source[index]), source[index].copy()):
        target[index] = np.zeros((), kind)
        packing.copy_past(target[index], origin)
        assert target.tobytes() == wanted.tobytes()


def test_compiled_loops_serve_long_runs_alone() -> None:
    packing._streaming.cache_clear()
    wide = (8000, 8)
    assert packing._streaming((64, 100), wide, (1600, 8), 8) is not None
    assert packing._streaming((64, 100), (8, 512), (800, 8), 8) is None
    assert packing._streaming((64, 31), wide, wide, 8) is None
