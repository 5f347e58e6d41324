"""What an axis of a mesh does to an array: split it, copy it, or add up to it."""

from __future__ import annotations

from dataclasses import dataclass

from closeranks.comms import argument
from closeranks.errors import UsageError

_OPS = ("sum", "min", "max")


@dataclass(frozen=True, slots=True)
class Split:
    """The members along a mesh axis hold parts of one array axis, in order.

    Parameters
    ----------
    axis : int
        Axis of the array; negative counts from the last.
    """

    axis: int

    def __post_init__(self) -> None:
        """Refuse what is no axis."""
        argument.whole("Split", "axis", self.axis, least=-64, below=64)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """The members along a mesh axis hold the same."""


@dataclass(frozen=True, slots=True)
class Partial:
    """The members along a mesh axis hold terms; the array is their reduction.

    Parameters
    ----------
    op : {"sum", "min", "max"}
        The reduction.  As the target of a conversion, the first member keeps
        the value, the others get the neutral element.
    """

    op: str = "sum"

    def __post_init__(self) -> None:
        """Refuse other reductions."""
        if not isinstance(self.op, str) or self.op not in _OPS:
            raise UsageError("Partial", f"op is {argument.shown(self.op)}",
                             f"choose one of {', '.join(_OPS)}")  # fmt: skip


#: Any of the three.
AxisPlacement = Split | Broadcast | Partial
