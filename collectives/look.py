"""What a look at something under way can find."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias


class Look(IntEnum):
    """The answer of a `Poll`."""

    WAITING = 0
    DONE = 1
    #: It has become a request of the execution, which takes over.
    POSTED = 2


#: Looks, never blocks; asked again until it no longer says WAITING.
Poll: TypeAlias = Callable[[], Look]
