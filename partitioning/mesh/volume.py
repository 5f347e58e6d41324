"""What each rank sends along an axis of a mesh in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any, Final

from closeranks.comms import argument
from closeranks.errors import UsageError

#: Pattern -> how an error describes it.
PATTERNS: Final = {
    "ring": "to the next member",
    "line": "to each neighbour there is",
    "torus": "to each of both neighbours",
    "all": "to all other members together",
}


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes that each rank sends along an axis in one step, and to which ranks.

    Parameters
    ----------
    nbytes : int or float
        Bytes, see ``pattern``; fractions are allowed, such as means of a step.
    pattern : {"ring", "line", "torus", "all"}
        "ring": ``nbytes`` to the next member, from the last to the first.
        "line": ``nbytes`` to each neighbour there is; the ends have one.
        "torus": ``nbytes`` to each of both neighbours, cyclic; with two
        members two messages to the same one.
        "all": ``nbytes`` in all, in equal parts to all other members.
        Along an axis of size 1 nothing is sent.

    Raises
    ------
    UsageError
        If the bytes are negative or not finite, or the pattern is unknown.

    Examples
    --------
    >>> Volume(4 << 20, "ring")
    Volume(nbytes=4194304, pattern='ring')
    """

    nbytes: int | float
    pattern: str

    def __post_init__(self) -> None:
        """Refuse what no rank can send."""
        nbytes: Any = self.nbytes
        if not _is_bytes(nbytes):
            raise UsageError("Volume", f"nbytes is {argument.shown(nbytes)}",
                             "give a finite number of bytes of at least 0")  # fmt: skip
        if not isinstance(self.pattern, str) or self.pattern not in PATTERNS:
            raise UsageError("Volume", f"unknown pattern {argument.shown(self.pattern)}",
                             f"choose one of {', '.join(PATTERNS)}")  # fmt: skip


def _is_bytes(nbytes: Any) -> bool:
    """Tell whether it is a finite number of at least 0."""
    number = isinstance(nbytes, Real) and not isinstance(nbytes, bool)
    try:
        return number and isfinite(nbytes) and nbytes >= 0
    except OverflowError:  # more than a float holds
        return False


def checked_volumes(where: str, volumes: Any, axes: Mapping[str, int]) -> dict[str, Volume]:
    """Read the volumes of a step; refuse axes that a mesh has not.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    volumes : mapping of str to Volume
        Axis -> what each rank sends along it.
    axes : mapping of str to int
        Axes of the mesh.

    Returns
    -------
    dict of str to Volume
        In the order of the axes.

    Raises
    ------
    UsageError
        If it is no such mapping.
    """
    argument.instance(where, "volumes", volumes, Mapping, "give axis -> Volume(nbytes, pattern)")
    for axis, volume in volumes.items():
        if axis not in axes:
            raise UsageError(where, f"unknown axis {argument.shown(axis)}",
                             f"choose one of {', '.join(axes)}")  # fmt: skip
        argument.instance(where, f"the volume of {axis!r}", volume, Volume,
                          "give Volume(nbytes, pattern)")  # fmt: skip
    return {axis: volumes[axis] for axis in axes if axis in volumes}
