"""Messages of pairs: what is written is read, and combining is that of a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.collectives.pairs import pair_message
from closeranks.collectives.pairs.pair_loops import LOOPS
from closeranks.collectives.pairs.pair_message import (
    HEADER_BYTES,
    OPS,
    TYPES,
    IndexForm,
    PairHeader,
    combined,
    dtype_named,
    form_of,
    header_of,
    indices_of,
    kind_of,
    values_of,
    write_message,
)

#: Around what 24, 31 and 32 bits hold, and the largest.
EDGES = (0, 1 << 24, 1 << 31, 1 << 32, 1 << 40, 2**63 - 2000)
REDUCTIONS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}


@st.composite
def spans(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Draw ascending indices and bounds that hold them."""
    low = draw(st.sampled_from(EDGES))
    span = draw(st.sampled_from([0, 1, 7, 8, 9, 300, 1900]))
    kinds = [st.just(0), st.just(span), st.integers(0, span)]
    count = draw(st.one_of(kinds))
    chosen = draw(st.permutations(range(span)))[:count] if span < 400 else range(count)
    if draw(st.booleans()):
        low = max(low - 5, 0)  # straddle the edge
    return np.array(sorted(chosen), np.int64) + low, low, low + span


@given(spans(), st.sampled_from(TYPES), st.integers(1, 3))
def test_what_is_written_is_read(drawn: tuple[np.ndarray, int, int], name: str, width: int) -> None:
    indices, low, high = drawn
    dtype = dtype_named(name)
    values = np.arange(len(indices) * width).astype(dtype)
    form, nbytes = form_of(indices, low, high)
    for chosen, size in {(form, nbytes), (IndexForm.WHOLE, 8 * len(indices))}:
        kind = kind_of("SUM", dtype)
        header = PairHeader(chosen, len(indices), low, high, kind, width, HEADER_BYTES, size)
        message = np.empty(header.nbytes, np.uint8)
        write_message(message, header, indices, values)
        found = header_of(message)
        assert found == header
        assert indices_of(message, found).tolist() == indices.tolist()
        assert values_of(message, found).tobytes() == values.tobytes()


@given(spans())
def test_the_form_takes_the_fewest_bytes(drawn: tuple[np.ndarray, int, int]) -> None:
    indices, low, high = drawn
    form, nbytes = form_of(indices, low, high)
    gaps = [0, *np.diff(indices)] if len(indices) else []
    coded = sum(max((int(gap) - 1).bit_length() + 6, 7) // 7 for gap in gaps[1:])
    coded += max((int(indices[0]) - low).bit_length() + 6, 7) // 7 if len(indices) else 0
    if len(indices) == high - low:
        assert (form, nbytes) == (IndexForm.ALL, 0)
    else:
        assert nbytes == min(coded, -(-(high - low) // 8))


@pytest.mark.parametrize(("density", "most"), [(0.08, 1.001), (0.001, 2.001)])
def test_bytes_of_an_index(density: float, most: float) -> None:
    draw = np.random.default_rng(1)
    indices = np.flatnonzero(draw.random(1 << 20) < density)
    _, nbytes = form_of(indices, 0, 1 << 20)
    assert nbytes <= most * len(indices)


def _reference(
    parts: list[tuple[np.ndarray, np.ndarray]], op: str, width: int
) -> dict[int, np.ndarray]:
    """Combine in a dictionary; halves in float32."""
    found: dict[int, np.ndarray] = {}
    for indices, values in parts:
        wide = values.astype(np.float32) if values.dtype.itemsize == 2 else values
        wide = values if values.dtype.kind in "iu" else wide
        for index, row in zip(indices.tolist(), wide.reshape(-1, width), strict=True):
            with np.errstate(all="ignore"):
                found[index] = REDUCTIONS[op](found[index], row) if index in found else row
    return found


def _parts(draw: Any, name: str, width: int, span: int) -> list[tuple[np.ndarray, np.ndarray]]:
    parts = []
    for _ in range(int(draw.integers(1, 6))):
        some = np.flatnonzero(draw.random(40) < draw.random())
        indices = some if span < 1000 else some * (span // 50)
        values = draw.integers(-3, 4, len(indices) * width).astype(dtype_named(name))
        if name.startswith(("float", "bfloat")):
            values[draw.random(len(values)) < 0.1] = np.nan
        parts.append((indices, values))
    return parts


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("span", [40, 1 << 40])
@pytest.mark.parametrize("compiled", [True, False])
def test_pairs_combine_in_their_order(
    op: str, name: str, span: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(pair_message, "_compiled", lambda _name: None)
    draw = np.random.default_rng(len(name))
    for width in (1, 3):
        parts = _parts(draw, name, width, span)
        with np.errstate(all="ignore"):
            indices, values = combined(parts, 0, span, op, width)
            wanted = _reference(parts, op, width)
            expected = np.array([wanted[index] for index in sorted(wanted)])
            expected = expected.astype(dtype_named(name)).reshape(-1)
        assert indices.tolist() == sorted(wanted)
        assert values.dtype == dtype_named(name)
        np.testing.assert_array_equal(values.astype(float), expected.astype(float))


def test_every_loop_is_compiled() -> None:
    for name in LOOPS:
        full = f"{name}.int64" if "v" in LOOPS[name][1] else name
        assert pair_message._compiled(full) is not None
