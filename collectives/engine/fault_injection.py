"""Faults on purpose: ranks die, stop, leave or are slow where a schedule says.

For users who want to see their program survive, and for our tests.  Only where
`closeranks.init` or ``closeranks run --faults`` allows it.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Final

from closeranks.collectives.plans.collective import OPERATIONS
from closeranks.errors import UsageError

ACTIONS: Final = ("kill", "stop", "exit", "raise", "slow")
#: Points of an attempt and of a recovery, in their order.  Beside them every operation is
#: one, where it is entered; with ``:rail`` where its first message to another node is
#: there, with ``:end`` where it is over here.
POINTS: Final = ("begin", "vote", "voted", "shrink", "rebuild", "move")
#: Places inside an operation.
_INSIDE: Final = ("rail", "end")
#: Words that not every action has.
_MEANT_FOR: Final = {"for": ("stop",), "factor": ("slow",), "status": ("exit",),
                     "at": ACTIONS[:-1], "after": ACTIONS[:-1]}  # fmt: skip
_MOST_STATUS: Final = 255
_WAYS_OUT: Final = "for instance 'kill seat=3 step=10; stop seat=1 at=allreduce:rail for=5s'"
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?)(ms|s)")


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule.

    Attributes
    ----------
    action : str
        One of `ACTIONS`.
    seat : int
        Who meets it.
    step : int or None
        In which loop of attempts, from 0 on; None: in any.
    at : str
        At which point.
    after_s : float
        How long after the point, in seconds: in the middle of what comes then.
    for_s : float or None
        How long it is stopped, in seconds; None: for ever.
    factor : float
        How much longer it takes between two calls.
    status : int
        With which status it exits.
    """

    action: str
    seat: int
    step: int | None = None
    at: str = "begin"
    after_s: float = 0.0
    for_s: float | None = None
    factor: float = 1.0
    status: int = 1


#: What the words of a fault are.
_KINDS: Final[dict[str, Any]] = {
    "action": str, "seat": Integral, "step": Integral | None, "at": str, "after_s": Real,
    "for_s": Real | None, "factor": Real, "status": Integral,
}  # fmt: skip
#: What a fault is that says no more than it must.
_NOTHING: Final = Fault("", 0)


class Injected(Exception):
    """Raised by the action ``raise``: an error of the user's program."""


class Injection:
    """The faults that this rank meets.

    Local.

    Parameters
    ----------
    seat : int
        Of this process.
    faults : iterable of Fault
        Of all ranks.
    seats : int, optional
        How many there are.
    joined : bool, optional
        Whether it is a newcomer, which meets nothing: it would die like the one in
        whose place it is.
    """

    def __init__(
        self,
        seat: int,
        faults: tuple[Fault, ...] = (),
        *,
        seats: int | None = None,
        joined: bool = False,
    ) -> None:
        self._seat, self._seats, self._step, self._joined = seat, seats, -1, joined
        self._mine = [fault for fault in faults if fault.seat == seat]
        self._left_s = time.perf_counter()

    def fail_at(
        self, seat: int, step: int | None, point: str = "begin", action: str = "kill", **more: float
    ) -> None:
        """Add a fault to the schedule.

        Local; ranks may add those of others.

        Parameters
        ----------
        seat, step, point, action
            As `Fault`.
        **more
            ``after_s``, ``for_s``, ``factor``, ``status``.

        Raises
        ------
        UsageError
            If it cannot happen, or no rank has that seat (local).
        """
        fault = checked(Fault(action, seat, step, point, **more))  # type: ignore[arg-type]
        _refuse_nobody((fault,), self._seats, f"{fault}")
        if seat == self._seat and not self._joined:
            self._mine.append(fault)

    def next_step(self) -> None:
        """Note that a loop of attempts begins."""
        self._step += 1

    def awaits(self, point: str) -> bool:
        """Tell whether anything happens at a point of this step."""
        return any(self._is_due(fault, point) for fault in self._mine)

    def reach(self, point: str) -> None:
        """Meet the faults of a point, each once."""
        for fault in [fault for fault in self._mine if self._is_due(fault, point)]:
            self._mine.remove(fault)
            if fault.after_s:
                later = threading.Timer(fault.after_s, meet, [fault])
                later.daemon = True  # a program that has ended by then has met nothing
                later.start()
            else:
                meet(fault)

    def slow_down(self) -> None:
        """Take as much longer since the last call as the schedule says."""
        since_s = time.perf_counter() - self._left_s
        for fault in self._mine:
            if fault.action == "slow" and fault.step in (None, self._step):
                time.sleep(since_s * (fault.factor - 1))

    def leave(self) -> None:
        """Note that a call is over."""
        self._left_s = time.perf_counter()

    def _is_due(self, fault: Fault, point: str) -> bool:
        return fault.action != "slow" and fault.at == point and fault.step in (None, self._step)


def meet(fault: Fault) -> None:
    """Let a fault happen to this process.

    Parameters
    ----------
    fault : Fault
        Any but a slow one.
    """
    sys.stderr.write(f"closeranks: fault on purpose: {fault}\n")
    sys.stderr.flush()
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.action == "exit":
        os._exit(fault.status)
    if fault.action == "raise":
        raise Injected(f"{fault}")
    if fault.for_s is not None:
        _wake_after(fault.for_s)
    os.kill(os.getpid(), signal.SIGSTOP)


def _wake_after(seconds: float) -> None:
    """Let a child continue this process, if it is still there.

    It holds nothing that anybody reads to its end, and ends with the others of the
    rank; one that was given to another parent knows that the rank has died.
    """
    own = os.getpid()
    words = f"sleep {seconds}; read _ _ _ parent _ </proc/$$/stat; "
    words += f"[ $parent = {own} ] && kill -CONT {own}"
    null = subprocess.DEVNULL
    subprocess.Popen(["sh", "-c", words], stdin=null, stdout=null, stderr=null)


def schedule(text: str, seats: int | None = None) -> tuple[Fault, ...]:
    """Read a schedule: faults between semicolons.

    Parameters
    ----------
    text : str
        ``ACTION seat=N [step=N] [at=POINT] [after=3ms] [for=5s] [factor=X]
        [status=N]``, as often as wanted.
    seats : int, optional
        How many there are.

    Returns
    -------
    tuple of Fault
        In the order of the text.

    Raises
    ------
    UsageError
        If a word has no meaning, or a seat is none (local).
    """
    faults = tuple(checked(_fault(clause)) for clause in text.split(";") if clause.strip())
    _refuse_nobody(faults, seats, text)
    return faults


def _refuse_nobody(faults: tuple[Fault, ...], seats: int | None, text: str) -> None:
    """Raise `UsageError` for faults of seats that nobody has."""
    nobody = sorted({fault.seat for fault in faults if seats is not None and fault.seat >= seats})
    if nobody:
        problem = f"no seat {', '.join(map(str, nobody))} among {seats} ranks: {text}"
        raise _wrong(problem, f"seats are 0 to {(seats or 1) - 1}")


def checked(fault: Fault) -> Fault:
    """Return a fault that can happen; raises `UsageError` for another one."""
    for key, kind in _KINDS.items():
        value = getattr(fault, key)
        if not isinstance(value, kind):
            raise _wrong(f"{key}={value!r}", "whole numbers for seat, step and status, numbers for"
                         " times and factor, texts for action and point")  # fmt: skip
    operation, _, inside = fault.at.partition(":")
    is_point = fault.at in POINTS or (operation in OPERATIONS and inside in ("", *_INSIDE))
    if fault.action not in ACTIONS:
        raise _wrong(f"no action {fault.action!r}", f"one of {', '.join(ACTIONS)}")
    if not is_point:
        known = ", ".join((*POINTS, "an operation", "OPERATION:rail", "OPERATION:end"))
        raise _wrong(f"no point {fault.at!r}", f"one of {known}")
    if fault.action == "raise" and (fault.at in POINTS or fault.after_s):
        raise _wrong("raise outside of an operation", "at=allreduce, or another one, without after")
    if fault.seat < 0 or (fault.step or 0) < 0 or not 0 <= fault.status <= _MOST_STATUS:
        raise _wrong(f"{fault}", f"seat and step from 0 on, a status up to {_MOST_STATUS}")
    times = fault.after_s, fault.for_s or 0
    if not 1 <= fault.factor < math.inf or not all(0 <= time_s < math.inf for time_s in times):
        raise _wrong(f"{fault}", "a factor from 1 on, finite times")
    for name, actions in _MEANT_FOR.items():
        key, _ = _READERS[name]
        is_said = getattr(fault, key) != getattr(_NOTHING, key)
        if is_said and fault.action not in actions:
            raise _wrong(f"{name!r} means nothing to {fault.action}: {fault}", _WAYS_OUT)
    return fault


def _fault(clause: str) -> Fault:
    """Read one fault."""
    action, *words = clause.split()
    found: dict[str, float | int | str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in _READERS:
            raise _wrong(f"no {name!r} in {clause.strip()!r}", f"one of {', '.join(_READERS)}")
        key, read = _READERS[name]
        if key in found or action not in _MEANT_FOR.get(name, (action,)):
            again = "twice" if key in found else f"means nothing to {action}"
            raise _wrong(f"{name!r} {again} in {clause.strip()!r}", _WAYS_OUT)
        try:
            if "_" in value and name != "at":
                raise ValueError(value)  # Python reads 1_0 as 10
            found[key] = read(value)
        except ValueError:
            raise _wrong(f"{word!r} in {clause.strip()!r}", _WAYS_OUT) from None
    if "seat" not in found:
        raise _wrong(f"no seat in {clause.strip()!r}", _WAYS_OUT)
    return Fault(action, **found)  # type: ignore[arg-type]


def _seconds(text: str) -> float:
    """Read a duration such as 5s or 20ms."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return float(match[1]) * (1e-3 if match[2] == "ms" else 1.0)


def _wrong(problem: str, remedy: str) -> UsageError:
    return UsageError("CLOSERANKS_FAULTS", problem, remedy)


_READERS: Final[dict[str, tuple[str, Callable[[str], float | int | str]]]] = {
    "seat": ("seat", int),
    "step": ("step", int),
    "at": ("at", str),
    "after": ("after_s", _seconds),
    "for": ("for_s", _seconds),
    "factor": ("factor", float),
    "status": ("status", int),
}
