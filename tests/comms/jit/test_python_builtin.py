"""Builtin functions made of C functions: right numbers through, wrong ones explained."""

from __future__ import annotations

import ctypes
import sys

import pytest

pytest.importorskip("numba")

from closeranks.comms.jit.python_builtin import function_at

#: Has ``int64 labs(int64)`` and ``void *memcpy(to, from, n)``.
_LIBRARY = ctypes.CDLL(None)


def place(name: str) -> int:
    return ctypes.cast(getattr(_LIBRARY, name), ctypes.c_void_p).value or 0


@pytest.mark.parametrize("number", [0, 1, -1, 2**62, -(2**62)])
def test_numbers_go_in_and_come_back(number: int) -> None:
    assert function_at(place("labs"), 1, "int")(number) == abs(number)


def test_results_are_what_was_asked_for() -> None:
    labs = place("labs")
    assert function_at(labs, 1)(5) is True
    assert function_at(labs, 1)(0) is False
    source, target = ctypes.create_string_buffer(b"abc"), ctypes.create_string_buffer(4)
    copy = function_at(place("memcpy"), 3, "nothing")
    copy(ctypes.addressof(target), ctypes.addressof(source), 3)
    assert target.value == b"abc"


@pytest.mark.parametrize("wrong", [(), (1, 2), ("1",), (None,), (1.5,)])
def test_wrong_arguments_are_type_errors(wrong: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        function_at(place("labs"), 1, "int")(*wrong)


def test_a_number_too_large_is_an_overflow_error() -> None:
    with pytest.raises(OverflowError):
        function_at(place("labs"), 1, "int")(1 << 70)


def test_nothing_is_leaked() -> None:
    labs, number = function_at(place("labs"), 1, "int"), 1 << 40
    before = sys.getrefcount(number)
    for _ in range(100):
        labs(number)
    assert sys.getrefcount(number) == before
