"""The answers that a look at something under way can give."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeAlias


class ProgressAnswer(IntEnum):
    """The answer of a `Poll`."""

    WAITING = 0
    DONE = 1
    #: It has become a request of the execution, which takes over.
    POSTED = 2


#: Looks, never blocks; asked again until it no longer says WAITING.
Poll: TypeAlias = Callable[[], ProgressAnswer]


class Patience(NamedTuple):
    """How long `Execution.advance` may stay when nothing moves, in compiled code.

    Attributes
    ----------
    total_ns : int
        The longest.
    spin_ns : int
        From then on it makes way for others between two looks.
    pause_us : int
        The longest sleep between two looks; 0: it yields.  After a long wait it
        sleeps longer, see `closeranks.collectives.engine.compiled_loop.stay`.
    wanted : int
        Address of an int64: it comes back as soon as that is not 0.
    """

    total_ns: int
    spin_ns: int
    pause_us: int
    wanted: int
