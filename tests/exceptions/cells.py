"""The cells of the matrix: where the others are, what one rank leaves by, on what.

`CELLS` are all of them, drawn so that a share has many places, errors and platforms.
"""

from __future__ import annotations

from itertools import product
from random import Random
from typing import NamedTuple

STATUS = {"ValueError": 1, "SystemExit": 3, "KeyboardInterrupt": 130}
PLACES = {
    "before": "before any call: the others close",
    "first": "in the first call",
    "trial": "in the trial phase",
    "settled": "in settled calls",
    "library": "in the library's own all-reduce",
    "I": "testing an `I` call",
    "wait": "in `wait`",
    "persistent": "in a persistent operation",
    "node": "in the set-up of node memory",
    "save": "in a checkpoint's save",
    "sub": "in calls of a sub-communicator",
    "split": "in `Split`",
    "lower": "in a lower-case call",
    "nested": "in a nested `init`",
    "thread": "in another thread",
    "hook": "with an own `sys.excepthook`",
    "pytest": "under pytest",
    "open": "with no `with` block",
}
#: Where the others wait in a call of the library that nothing ends.
HELD = {"first", "trial", "settled", "library", "sub", "lower", "nested"}


class Cell(NamedTuple):
    """One rank leaves by an error.

    Attributes
    ----------
    where, error : str
        One of `PLACES`, one of `STATUS`.
    platform : str
        "node": 3 ranks on one; "lab": 2 nodes of 2.
    """

    where: str
    error: str
    platform: str

    @property
    def ranks(self) -> int:
        """How many there are."""
        return 3 if self.platform == "node" else 4

    @property
    def status(self) -> set[int]:
        """What the job may end with."""
        if self.where == "thread":
            return {0}
        if self.where == "pytest":
            return {1, 2}
        return {STATUS[self.error]}

    @property
    def shows(self) -> int:
        """How many tracebacks there are in all; -1 where others write them."""
        if self.where in ("thread", "pytest"):
            return -1
        return int(self.error != "SystemExit" and self.where != "hook")


#: Nobody sees that a process ends by SystemExit that has left no block.
_CELLS = [
    Cell(*words)
    for words in product(PLACES, STATUS, ("node", "lab"))
    if words[:2] != ("open", "SystemExit")
]
CELLS = Random(len(_CELLS)).sample(_CELLS, len(_CELLS))
