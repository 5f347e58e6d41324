"""Signal handlers that wait while other ranks depend on this one.

An exception of a handler leaves a call between any two lines.  Some steps
beside a call are collective: the set-up of its resources, the Barriers of a
trial.  They cannot go on without one rank, and the next call of that rank
would meet this call of the others.  So handlers wait there until the call has
ended, as they do inside a call of the MPI library.  A signal that still comes
a second later does not wait.
"""

from __future__ import annotations

import os
import signal
import threading
import time

# Below `signal`, which makes an enum of each argument and result: 0.3 ms for all signals.
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
    """State of the main thread, which alone runs handlers."""

    thread = threading.main_thread().ident
    depth = 0
    handlers: dict[int, _Handler] | None = None
    #: Signal -> time of its first arrival, in this order.
    come: ClassVar[dict[int, float]] = {}


class DeferredHandlers:
    """A call of this rank, for a ``with`` block: handlers wait up to its end at most.

    Local; nothing waits before `defer_handlers`.
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
        if get_ident() != _Waiting.thread:
            return
        _Waiting.depth -= 1
        if _Waiting.depth or _Waiting.handlers is None:
            return
        handlers, _Waiting.handlers = _Waiting.handlers, None
        for one, handler in handlers.items():
            set_handler(one, handler)
        while _Waiting.come:  # they run now, in the order of arrival
            first = next(iter(_Waiting.come))
            del _Waiting.come[first]
            signal.raise_signal(first)


def defer_handlers() -> None:
    """Let handlers wait from now on, up to the end of the call that is under way.

    Local, harmless twice; does nothing outside of `DeferredHandlers`.
    """
    is_main = get_ident() == _Waiting.thread  # as `_is_main`
    if not _Waiting.depth or _Waiting.handlers is not None or not is_main:
        return
    _Waiting.come.clear()
    waiting: dict[int, _Handler] = {}
    for one in _SIGNALS:
        if callable(found := getsignal(one)):
            waiting[one] = found
    _Waiting.handlers = waiting  # before the loop: each replaced handler is put back then
    for one in waiting:
        set_handler(one, _note)


def are_deferred() -> bool:
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
