"""Nests: the dicts, lists and tuples that hold the leaves of a state."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final, TypeAlias

from closeranks.errors import UsageError

#: A dict, list or tuple, or a kind of those; or a leaf.
Nest: TypeAlias = Any
#: None for a leaf; else kind, keys (None of lists and tuples) and what is inside.
_Node: TypeAlias = Any
#: What is said of a kind that another rank cannot make.
_REMEDY: Final = "define it at the top of a module that all ranks have, or use dict, list, tuple"


def shape_of(nest: Nest) -> bytes:
    """Describe a nest without its leaves: alike, whoever made its keys."""
    return json.dumps(_node(nest)).encode()


def check(old: Nest, shape: bytes) -> None:
    """Raise UsageError unless `rebuilt` can make what is not there.  Local."""
    _check(old, json.loads(shape))


def rebuilt(old: Nest, shape: bytes, leaves: Iterator[Any]) -> Nest:
    """Make a nest like another one.

    Parameters
    ----------
    old : dict, list or tuple
        What is there now: dicts and lists of the same kind, in the same place,
        stay the same objects.  One that is in several places that are to differ
        is kept in the first.
    shape : bytes
        Of the new one, see `shape_of`.
    leaves : iterator
        Of the new one, in its order.

    Returns
    -------
    dict, list or tuple
        ``old`` itself unless it is a tuple or of another kind.
    """
    return _rebuilt(old, json.loads(shape), leaves, set())


def _node(nest: Nest) -> _Node:
    if isinstance(nest, dict):
        return [_kind(nest), list(nest), [_node(inner) for inner in nest.values()]]
    if isinstance(nest, list | tuple):
        return [_kind(nest), None, [_node(inner) for inner in nest]]
    return None


def _check(old: Nest, node: _Node) -> None:
    if node is None:
        return
    kind, keys, inner = node
    if _kind(old) != kind:
        _sequence(kind, [None] * len(inner)) if keys is None else _empty(kind)
    for place, part in zip(_places(old, node), inner, strict=True):
        _check(place, part)


def _rebuilt(old: Nest, node: _Node, leaves: Iterator[Any], taken: set[int]) -> Nest:
    if node is None:
        return next(leaves)
    kind, keys, inner = node
    new = [_rebuilt(place, part, leaves, taken)
           for place, part in zip(_places(old, node), inner, strict=True)]  # fmt: skip
    is_same, is_taken = _kind(old) == kind, id(old) in taken
    taken.add(id(old))
    if is_same and _holds(old, keys, new):
        return old
    if keys is not None:
        target = _emptied(old, is_taken) if is_same else _empty(kind)
        target.update(dict(zip(keys, new, strict=True)))  # a Counter counts pairs of another kind
        return target
    if is_same and isinstance(old, list) and not is_taken:
        old[:] = new
        return old
    return _filled(type(old), new) if is_same else _sequence(kind, new)


def _places(old: Nest, node: _Node) -> list[Nest]:
    """Give what is there now where parts of a new nest will be, or None."""
    _, keys, inner = node
    if isinstance(old, dict) and keys is not None:
        return [old.get(key) for key in keys]
    if isinstance(old, list | tuple) and keys is None:
        return [*old[: len(inner)], *[None] * (len(inner) - len(old))]
    return [None] * len(inner)


def _holds(old: Nest, keys: list[str] | None, new: list[Any]) -> bool:
    """Tell whether nothing is to be done."""
    held = list(old) if keys is None else list(old.values())
    alike = len(held) == len(new) and all(map(_is, held, new))
    return alike and (keys is None or list(old) == keys)


def _is(one: object, other: object) -> bool:
    return one is other


def _emptied(old: dict[str, Any], is_taken: bool) -> dict[str, Any]:
    """Clear a dict, or a copy of one that is kept for another place."""
    old = copy.copy(old) if is_taken else old
    old.clear()
    return old


def _kind(nest: Nest) -> str:
    """Name the class, and what a defaultdict makes."""
    name = _name(type(nest))
    if isinstance(nest, defaultdict) and nest.default_factory is not None:
        return f"{name} {_name(nest.default_factory)}"
    return name


def _name(thing: Any) -> str:
    return f"{thing.__module__}:{getattr(thing, '__qualname__', '?')}"


def _filled(made: Any, items: list[Any]) -> Nest:
    return made(*items) if hasattr(made, "_fields") else made(items)


def _sequence(kind: str, items: list[Any]) -> Nest:
    """Make a list or tuple of a kind."""
    try:
        return _filled(_found(kind), items)
    except UsageError:
        raise
    except Exception as error:
        raise _unmakable(kind, error) from error


def _unmakable(kind: str, error: Exception) -> UsageError:
    problem = f"a {kind.replace(':', '.')} cannot be made here: {error}"
    return UsageError("synchronize", problem, _REMEDY)


def _empty(kind: str) -> dict[str, Any]:
    """Make an empty dict of a kind."""
    name, _, factory = kind.partition(" ")
    try:
        made = _found(name)
        empty: dict[str, Any] = made(_found(factory)) if factory else made()
    except UsageError:
        raise
    except Exception as error:
        raise _unmakable(name, error) from error
    return empty


def _found(name: str) -> Any:
    """Give what has a name, see `_name`."""
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise UsageError("synchronize", f"{name.replace(':', '.')} is not found here: {error}",
                         _REMEDY) from error  # fmt: skip
    return found
