"""Attributes that are made at their first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_T = TypeVar("_T")


class lazy(Generic[_T]):
    """A property that is made at its first use and kept in the instance.

    As `functools.cached_property`, but without its lock.  Before Python 3.12
    that lock is shared by all instances of a class.  Two threads in first calls
    that wait for other ranks would block each other, one here and one there.

    Parameters
    ----------
    make : callable
        Given the instance, makes the value; may be collective.
    """

    def __init__(self, make: Callable[[Any], _T]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[_T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> _T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> _T | lazy[_T]:
        if instance is None:
            return self
        made = instance.__dict__[self._name] = self._make(instance)
        return made
