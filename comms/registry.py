"""Weak references that one thread iterates while other threads change them.

`weakref.WeakSet` iterates in Python code: if another thread adds an object
meanwhile, iteration raises `RuntimeError`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

_Thing = TypeVar("_Thing")


class Registry(Generic[_Thing]):
    """Registered objects, each as long as it lives.

    Any thread may call any method.  Iteration gives the objects that were there
    when it began and still live.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[int, _Thing] = weakref.WeakValueDictionary()

    def add(self, thing: _Thing) -> None:
        """Register an object; harmless twice.  Local."""
        self._known[id(thing)] = thing

    def discard(self, thing: _Thing) -> None:
        """Forget an object; harmless twice.  Local."""
        self._known.pop(id(thing), None)

    def __bool__(self) -> bool:
        """Tell whether any object is registered."""
        return bool(self._known)

    def __iter__(self) -> Iterator[_Thing]:
        """Give the objects that live now."""
        references = self._known.valuerefs()  # copied in one step of the interpreter
        return iter([thing for one in references if (thing := one()) is not None])
