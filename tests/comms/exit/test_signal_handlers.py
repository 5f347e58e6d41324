"""Handlers of signals that wait: see tests/mpi/test_called_away.py for what they wait for."""

from __future__ import annotations

import signal
from timeit import timeit

from closeranks.comms.exit import signal_handlers
from tests.pace import least_shares

#: What it may add to a call in a trial, in seconds; 64 answers of `signal` took 700 us.
_MOST_S = 40e-6


def _held() -> None:
    with signal_handlers.DeferredHandlers():
        signal_handlers.defer_handlers()


def test_to_hold_them_takes_microseconds() -> None:
    shares = least_shares(lambda: [timeit(_held, number=500) / 500 / _MOST_S])
    assert max(shares) < 1


def test_all_are_back_after_a_call() -> None:
    before = [signal.getsignal(one) for one in signal.valid_signals()]
    with signal_handlers.DeferredHandlers():
        signal_handlers.defer_handlers()
        assert signal.getsignal(signal.SIGINT) != signal.default_int_handler
    assert [signal.getsignal(one) for one in signal.valid_signals()] == before
