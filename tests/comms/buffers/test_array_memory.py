"""Memory of arrays, and settings."""

from __future__ import annotations

import array

import ml_dtypes
import numpy as np
import pytest

from closeranks.comms.buffers.array_memory import memory
from closeranks.comms.settings import refuse_unknown, switch
from closeranks.errors import UsageError


def test_memory_is_that_of_the_array() -> None:
    x = np.arange(6.0)
    found = memory(x, "Bcast", writable=True)
    assert np.shares_memory(found.data, x)
    assert (found.nbytes, found.dtype, found.contiguous) == (48, x.dtype, True)


@pytest.mark.parametrize(
    ("buffer", "nbytes"),
    [
        (array.array("d", [1, 2]), 16),
        (bytearray(5), 5),
        (memoryview(bytearray(3)), 3),
        (np.float32(1).reshape(()), 4),
        (np.ones((2, 3), order="F"), 48),
        (np.ones((0, 3)), 0),
        (np.ones(3, ml_dtypes.bfloat16), 6),
    ],
    ids=["array", "bytearray", "memoryview", "scalar array", "Fortran", "empty", "bfloat16"],
)
def test_every_kind_of_buffer_is_bytes(buffer: object, nbytes: int) -> None:
    found = memory(buffer, "Bcast")
    assert found.data.shape == (nbytes,)
    assert found.data.dtype == np.dtype(np.uint8)
    assert found.contiguous


def test_gaps_are_seen() -> None:
    x = np.arange(12.0).reshape(3, 4)
    found = memory(x[:, 1], "Bcast")
    assert not found.contiguous
    assert found.nbytes == 24


def test_unknown_settings_are_refused() -> None:
    refuse_unknown({"CLOSERANKS_CHECK": "1", "PATH": "/"})
    with pytest.raises(UsageError, match="no setting CLOSERANKS_CHEK; one of CLOSERANKS_CHECK"):
        refuse_unknown({"CLOSERANKS_CHEK": "1"})


@pytest.mark.parametrize(("text", "is_on"), [("1", True), ("off", False), ("", False)])
def test_switches_say_yes_or_no(monkeypatch: pytest.MonkeyPatch, text: str, is_on: bool) -> None:
    monkeypatch.setenv("CLOSERANKS_CHECK", text)
    assert switch("CHECK") is is_on
    monkeypatch.setenv("CLOSERANKS_CHECK", "perhaps")
    with pytest.raises(UsageError, match="'perhaps'"):
        switch("CHECK")
