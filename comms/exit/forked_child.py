"""What a child that was forked has of its parent's communicators: no use.

A child shares the memory of the node and the library's connections with its
parent, but is no rank: what it sends, or writes into shared memory, passes for
its parent's, and the others go on without that.  So in a child of a process
that MPI knows every call raises `UsageError`.  Nothing is asked in a parent:
when a child begins it gives all that has calls another class.
"""

from __future__ import annotations

import os
import sys
import weakref
from functools import cache, partial
from typing import Any, Final, NoReturn

from closeranks.errors import UsageError


class Process:
    """Whether this process is such a child.

    Attributes
    ----------
    is_copy : bool
        For who asks at each call; others call `is_copy`.
    """

    is_copy = False


#: id -> what is given another class in a child; not kept alive.
_CONCERNED: Final[dict[int, weakref.ref[Any]]] = {}


def is_copy() -> bool:
    """Tell whether this process was forked by one that MPI knows.  Local."""
    return Process.is_copy


def refuse(operation: str) -> None:
    """Raise where this process was forked by one that MPI knows.

    Local.

    Parameters
    ----------
    operation : str
        What was asked for.

    Raises
    ------
    UsageError
        In the child; nothing has been sent or written.
    """
    if Process.is_copy:
        _refused(operation)


def _refused(operation: str, *_: object, **__: object) -> NoReturn:
    raise UsageError(
        operation,
        f"process {os.getpid()} was forked by process {os.getppid()}, and is no rank itself",
        "leave calls to the process that MPI knows, and give it the child's results by a pipe,"
        " or start the child by subprocess or multiprocessing's 'spawn'",
    )


def concern(thing: Any) -> None:
    """Let a thing refuse all calls in a child.

    Local.

    Parameters
    ----------
    thing : object
        Of a class of Python's.  Its attributes and what its class names in
        ``CALLS_IN_COPIES`` stay.  If it has ``become_copy()``, that is called in
        the child before.
    """
    key = id(thing)
    _CONCERNED[key] = weakref.ref(thing, lambda _: _CONCERNED.pop(key, None))


@cache
def _class_of_copies(kind: type) -> type:
    """Derive the class of things in a child: their public methods are refused."""
    calls: frozenset[str] = getattr(kind, "CALLS_IN_COPIES", frozenset())

    def look_up(self: object, name: str) -> Any:
        found = object.__getattribute__(self, name)
        stays = name.startswith("_") or name in calls or not callable(found)
        return found if stays else partial(_refused, name)

    of_copies = {"__slots__": (), "__module__": kind.__module__, "__getattribute__": look_up}
    return type(kind.__name__, (kind,), of_copies)


def _begin_copy() -> None:
    """Become a child; MPI must know the parent, or nothing has been forked of it."""
    known: Any = sys.modules.get("mpi4py.MPI")
    if Process.is_copy or known is None or not known.Is_initialized():
        return
    Process.is_copy = True
    for one in tuple(_CONCERNED.values()):
        thing = one()
        if thing is None:
            continue
        if hasattr(thing, "become_copy"):
            thing.become_copy()
        kind: Any = type(thing)
        thing.__class__ = _class_of_copies(kind)


os.register_at_fork(after_in_child=_begin_copy)
