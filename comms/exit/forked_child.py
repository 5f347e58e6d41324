"""Forked children of an MPI process: they must not use its communicators.

A child shares node memory and the library's connections with its parent, but
is no rank.  Messages and writes of the child would pass for its parent's.
Every call therefore raises `UsageError` in a child.  A parent pays nothing:
when a child begins, all objects with calls get another class.
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
    is_child : bool
        For who asks at each call; others call `is_child`.
    """

    is_child = False


#: id -> object that gets another class in a child; not kept alive.
_CONCERNED: Final[dict[int, weakref.ref[Any]]] = {}


def is_child() -> bool:
    """Tell whether this process was forked by one that MPI knows.  Local."""
    return Process.is_child


def refuse_in_child(operation: str) -> None:
    """Raise if this process was forked by an MPI process.

    Local.

    Parameters
    ----------
    operation : str
        The refused call.

    Raises
    ------
    UsageError
        In the child; nothing has been sent or written.
    """
    if Process.is_child:
        _refused(operation)


def _refused(operation: str, *_: object, **__: object) -> NoReturn:
    raise UsageError(
        operation,
        f"process {os.getpid()} was forked by process {os.getppid()}, and is no rank itself",
        "leave calls to the process that MPI knows, and give it the child's results by a pipe,"
        " or start the child by subprocess or multiprocessing's 'spawn'",
    )


def guard_object(thing: Any) -> None:
    """Let an object refuse all calls in a child.

    Local.

    Parameters
    ----------
    thing : object
        Of a Python class.  Its attributes stay usable, and the methods that its
        class names in ``CALLS_IN_CHILD``.  If it has ``become_child()``, the child
        calls that first.
    """
    key = id(thing)
    _CONCERNED[key] = weakref.ref(thing, lambda _: _CONCERNED.pop(key, None))


@cache
def _class_in_child(kind: type) -> type:
    """Derive the class of an object in a child: public methods are refused."""
    calls: frozenset[str] = getattr(kind, "CALLS_IN_CHILD", frozenset())

    def look_up(self: object, name: str) -> Any:
        found = object.__getattribute__(self, name)
        stays = name.startswith("_") or name in calls or not callable(found)
        return found if stays else partial(_refused, name)

    of_copies = {"__slots__": (), "__module__": kind.__module__, "__getattribute__": look_up}
    return type(kind.__name__, (kind,), of_copies)


def _become_child() -> None:
    """Become a child; does nothing if the parent had not initialised MPI."""
    known: Any = sys.modules.get("mpi4py.MPI")
    if Process.is_child or known is None or not known.Is_initialized():
        return
    Process.is_child = True
    for one in tuple(_CONCERNED.values()):
        thing = one()
        if thing is None:
            continue
        if hasattr(thing, "become_child"):
            thing.become_child()
        kind: Any = type(thing)
        thing.__class__ = _class_in_child(kind)


os.register_at_fork(after_in_child=_become_child)
