"""Numbers that are not finite, wherever they are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from closeranks.collectives.replicated.leaf_bytes import illness

RECORD = np.dtype([("a", "i4"), ("b", [("c", "f8", (2,)), ("d", "c8")])])


def record(value: complex) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Make an array of structures with a number deep inside."""
    made = np.zeros(3, RECORD)
    made["b"]["d"][1] = value
    return made


@pytest.mark.parametrize(
    ("leaf", "says"),
    [
        (1, ""), (1.0, ""), (np.inf, "Inf"), (complex(0, np.nan), "NaN"), ("nan", ""), (None, ""),
        (np.float32(np.nan), "NaN"), (np.str_("nan"), ""), (np.datetime64("NaT"), ""),
        (np.array([np.inf, np.nan]), "NaN"), (np.array([], "f4"), ""),
        (np.longdouble("inf"), "Inf"),
        (record(1), ""), (record(np.nan), "NaN"), (record(complex(0, np.inf)), "Inf"),
        (record(np.nan)[1], "NaN"), (record(np.nan)[0], ""), (np.zeros(2, []), ""),
        (np.zeros(2, "V8"), ""), (np.void(b"ab"), ""),
    ],
    ids=repr,
)  # fmt: skip
def test_the_worst_is_named(leaf: object, says: str) -> None:
    assert illness(leaf) == says


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3"])
def test_short_floats_of_other_packages_are_numbers(name: str) -> None:
    number = getattr(ml_dtypes, name)
    assert illness(np.array([1, 2], number)) == ""
    assert illness(np.array([1, np.nan], number)) == "NaN"
    assert illness(number(np.nan)) == "NaN"
    assert illness(np.array([(1, np.nan)], [("a", "i1"), ("b", number)])) == "NaN"


def test_integers_of_other_packages_are_always_finite() -> None:
    assert illness(np.array([1, 2], ml_dtypes.int4)) == ""


def test_what_a_mask_hides_does_not_count() -> None:
    values = np.ma.masked_invalid([1.0, np.nan, np.inf])
    assert illness(values) == ""
    values.mask = [True, True, False]
    assert illness(values) == "Inf"
    hidden = np.ma.MaskedArray(record(np.nan), mask=False)
    assert illness(hidden) == "NaN"
    hidden[1] = np.ma.masked
    assert illness(hidden) == ""
    assert illness(np.ma.masked) == ""
