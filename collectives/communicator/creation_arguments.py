"""What communicators are made from: what is wrong with it, in words.

Everything here is local.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from mpi4py import MPI

from closeranks.comms import argument
from closeranks.errors import UsageError

#: What is wrong, and the way out.
Problem = tuple[str, str]
_REMEDY: Final = "give what the method of MPI.Intracomm takes"
#: What a C int holds.
_MOST: Final = 2**31


def number(name: str, value: Any, least: int = -_MOST) -> Problem | None:
    """Say what keeps a value from being a C int, or None."""
    try:
        argument.whole("", name, value, least=least, below=_MOST)
    except UsageError as wrong:
        return wrong.problem, wrong.remedy
    return None


def color_of(value: Any) -> Problem | None:
    """Say what keeps a value from being a color, or None."""
    if isinstance(value, int) and value == MPI.UNDEFINED:
        return None
    problem = number("color", value, 0)
    return problem and (problem[0], f"{problem[1]}, or MPI.UNDEFINED")


def subgroup(value: Any) -> Problem | None:
    """Say what keeps a value from being a group, or None."""
    if isinstance(value, MPI.Group) and value != MPI.GROUP_NULL:
        return None
    return f"group is {argument.shown(value)}", "give an MPI.Group, such as Get_group().Incl(ranks)"


def hints(value: Any) -> Problem | None:
    """Say what keeps a value from being hints, or None."""
    if value is None or isinstance(value, MPI.Info):
        return None
    return f"info is {argument.shown(value)}", "give an MPI.Info, or none"


@contextmanager
def refusing(method: str) -> Iterator[None]:
    """Turn what mpi4py, not the library, says of arguments into `UsageError`."""
    try:
        yield
    except UsageError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError) as wrong:
        raise UsageError(method, f"{type(wrong).__name__}: {wrong}", _REMEDY) from wrong
