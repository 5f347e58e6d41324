"""Handlers of signals that wait while other ranks count on this one.

What a handler raises takes its caller out of a call, between whatever two
lines.  Steps that ranks take together before and beside a call (the set-up of
what it needs, the Barriers of a trial) cannot go on without a caller, and the
next call of this rank would meet this one of the others.  So handlers wait
there until the call has ended, as they do while a call of the MPI library is
under way.  A signal that still comes a second later does not wait.
"""

from __future__ import annotations

import os
import signal
import threading
import time

# What `signal` is made of, which makes enums of what it takes and gives: 0.3 ms for all signals.
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final

_Handler = Any
#: How long a signal that comes again and again waits, in seconds.
PATIENCE_S: Final = 1.0
_SIGNALS: Final = tuple(map(int, signal.valid_signals()))


class _Waiting:
    """What the main thread is in, which alone runs handlers."""

    thread = threading.main_thread().ident
    depth = 0
    handlers: dict[int, _Handler] | None = None
    #: Signal -> when it came first, in the order of that.
    come: ClassVar[dict[int, float]] = {}


class Together:
    """A call of this rank, for a ``with`` block: handlers wait up to its end at most.

    Local; nothing waits before `hold`.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        if get_ident() == _Waiting.thread:
            _Waiting.depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if get_ident() == _Waiting.thread:
            _Waiting.depth -= 1
            if not _Waiting.depth and _Waiting.handlers is not None:
                _release()


def hold() -> None:
    """Let handlers wait from now on, up to the end of the call that is under way.

    Local, harmless twice; does nothing outside of `Together`.
    """
    if not _Waiting.depth or _Waiting.handlers is not None or not _is_main():
        return
    _Waiting.come.clear()
    waiting = {one: found for one in _SIGNALS if callable(found := getsignal(one))}
    _Waiting.handlers = waiting  # before: what is replaced is put back whatever comes between
    for one in waiting:
        set_handler(one, _note)


def are_held() -> bool:
    """Tell whether handlers wait.  Local."""
    return _Waiting.handlers is not None and _is_main()


def _is_main() -> bool:
    return get_ident() == _Waiting.thread


def _begin_copy() -> None:
    """Take the thread that has forked for the main one of this child."""
    _Waiting.thread = get_ident()


os.register_at_fork(after_in_child=_begin_copy)


def _note(number: int, frame: FrameType | None) -> None:
    """Note a signal; run its handler if it has come for a while."""
    now_s = time.monotonic()
    since_s = _Waiting.come.setdefault(number, now_s)
    if now_s - since_s >= PATIENCE_S and _Waiting.handlers is not None:
        _Waiting.handlers[number](number, frame)


def _release() -> None:
    """Put the handlers back, and run those whose signals have come."""
    handlers, _Waiting.handlers = _Waiting.handlers or {}, None
    for one, handler in handlers.items():
        set_handler(one, handler)
    while _Waiting.come:
        first = next(iter(_Waiting.come))
        del _Waiting.come[first]
        signal.raise_signal(first)
