"""Whose turn it is, also where the handler of a signal raises."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from closeranks.comms.mpi.mpi_lock import in_turn


class _Alarm(Exception):
    pass


class _Interrupted:
    """A lock whose taker is interrupted before it hears whether it has it."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock

    def acquire(self, blocking: bool = True) -> bool:
        self._lock.acquire(blocking)
        raise _Alarm

    def release(self) -> None:
        self._lock.release()


def _is_free(lock: threading.RLock) -> bool:
    """Ask in another thread, for which it matters."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(in_turn, lock, lambda: True).result() is True


def _fail() -> bool:
    raise _Alarm


def test_work_is_done_unless_another_thread_is_at_it() -> None:
    lock = threading.RLock()
    assert in_turn(lock, max, False, True) is True
    assert _is_free(lock)
    with lock:
        assert not _is_free(lock)
        assert in_turn(lock, lambda: False) is False
        assert not _is_free(lock), "who has it keeps it"
    assert _is_free(lock)


def test_no_lock_is_left_behind() -> None:
    lock = threading.RLock()
    with pytest.raises(_Alarm):
        in_turn(lock, _fail)
    assert _is_free(lock)
    with pytest.raises(_Alarm):
        in_turn(_Interrupted(lock), lambda: True)
    assert _is_free(lock)


def test_who_is_interrupted_takes_no_lock_from_another_thread() -> None:
    lock = threading.RLock()
    with lock, ThreadPoolExecutor(1) as pool:
        met = pool.submit(in_turn, _Interrupted(lock), lambda: True).exception()
        assert isinstance(met, _Alarm)
        assert not _is_free(lock)
