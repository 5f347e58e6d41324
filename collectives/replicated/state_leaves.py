"""A state: a pytree of dicts, lists and tuples whose leaves all ranks hold alike.

The first part takes pytrees apart and puts them together; the second names the
leaves of a state by their paths and compares them.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections import defaultdict
from collections.abc import Iterator
from hashlib import blake2b
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from closeranks.collectives.replicated.leaf_bytes import (
    CLASSES,
    DIGEST_BYTES,
    Entry,
    Leaf,
    entry_of,
    illness,
)
from closeranks.errors import UsageError

#: A dict, list or tuple, or a kind of those; or a leaf.
Pytree: TypeAlias = Any
#: None for a leaf; else kind, keys (None of lists and tuples) and what is inside.
_Node: TypeAlias = Any
#: The remedy for a kind that another rank cannot make.
_REMEDY: Final = "define it at the top of a module that all ranks have, or use dict, list, tuple"


def shape_of(tree: Pytree) -> bytes:
    """Describe a pytree without its leaves: alike on all ranks with these keys."""
    return json.dumps(_node(tree)).encode()


def check(old: Pytree, shape: bytes) -> None:
    """Raise UsageError unless `rebuilt` can make the missing parts.  Local."""
    _check(old, json.loads(shape))


def rebuilt(old: Pytree, shape: bytes, leaves: Iterator[Any]) -> Pytree:
    """Make a pytree like another one.

    Parameters
    ----------
    old : dict, list or tuple
        The present pytree: dicts and lists of the same kind, in the same place,
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


def _node(tree: Pytree) -> _Node:
    if isinstance(tree, dict):
        return [_kind(tree), list(tree), [_node(inner) for inner in tree.values()]]
    if isinstance(tree, list | tuple):
        return [_kind(tree), None, [_node(inner) for inner in tree]]
    return None


def _check(old: Pytree, node: _Node) -> None:
    if node is None:
        return
    kind, keys, inner = node
    if _kind(old) != kind:
        _sequence(kind, [None] * len(inner)) if keys is None else _empty(kind)
    for place, part in zip(_places(old, node), inner, strict=True):
        _check(place, part)


def _rebuilt(old: Pytree, node: _Node, leaves: Iterator[Any], taken: set[int]) -> Pytree:
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


def _places(old: Pytree, node: _Node) -> list[Pytree]:
    """Give the present objects in the places of a new pytree, or None."""
    _, keys, inner = node
    if isinstance(old, dict) and keys is not None:
        return [old.get(key) for key in keys]
    if isinstance(old, list | tuple) and keys is None:
        return [*old[: len(inner)], *[None] * (len(inner) - len(old))]
    return [None] * len(inner)


def _holds(old: Pytree, keys: list[str] | None, new: list[Any]) -> bool:
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


def _kind(tree: Pytree) -> str:
    """Name the class, and the factory of a defaultdict."""
    name = _name(type(tree))
    if isinstance(tree, defaultdict) and tree.default_factory is not None:
        return f"{name} {_name(tree.default_factory)}"
    return name


def _name(thing: Any) -> str:
    return f"{thing.__module__}:{getattr(thing, '__qualname__', '?')}"


def _filled(made: Any, items: list[Any]) -> Pytree:
    return made(*items) if hasattr(made, "_fields") else made(items)


def _sequence(kind: str, items: list[Any]) -> Pytree:
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
    """Give the object of a name, see `_name`."""
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise UsageError("synchronize", f"{name.replace(':', '.')} is not found here: {error}",
                         _REMEDY) from error  # fmt: skip
    return found


#: Types of leaves.
_SIMPLE: Final = (bool, int, float, complex, str, bytes, type(None), np.generic, np.ndarray)

State: TypeAlias = Any


class LeafTable(NamedTuple):
    """A state without its bytes.

    Attributes
    ----------
    shape : bytes
        The pytree without its leaves, see `shape_of`.
    entries : dict of str to Entry
        Path -> leaf, such as ``"model/layers/0/weight"``, in order.
    """

    shape: bytes
    entries: dict[str, Entry]

    @property
    def digest(self) -> bytes:
        """Equal for states that are equal bit for bit."""
        whole = blake2b(self.shape, digest_size=DIGEST_BYTES)
        for path, entry in self.entries.items():
            whole.update(path.encode("utf-8", "surrogatepass") + b"\0" + entry.digest)
        return whole.digest()

    def unlike(self, other: LeafTable) -> tuple[str, ...]:
        """List the leaves of another state that this one lacks or has otherwise."""
        mine = self.entries
        return tuple(path for path, entry in other.entries.items() if mine.get(path) != entry)


def table(state: State) -> LeafTable:
    """Describe a state; reads every byte of it.

    Local.

    Parameters
    ----------
    state : dict, list or tuple
        A pytree of them, of arrays, numbers, strings and bytes.

    Returns
    -------
    LeafTable
        Its content.

    Raises
    ------
    UsageError
        If something else is in it, a key of a dict is no string, or two leaves
        have the same path.
    """
    found: dict[str, Entry] = {}
    for path, leaf in leaves(state):
        if path in found:
            raise UsageError("synchronize", f"two leaves have the path {path!r}",
                             "call a key otherwise: / stands between keys")  # fmt: skip
        found[path] = _entry(path, leaf)
    return LeafTable(shape_of(state), found)


def leaves(state: State, path: str = "") -> Iterator[tuple[str, Leaf]]:
    """Give the leaves of a state with their paths, in its order.  Local."""
    if isinstance(state, dict):
        for key, value in state.items():
            if not isinstance(key, str):
                raise UsageError("synchronize", f"the key {key!r} of {path or 'the state'}",
                                 "use strings")  # fmt: skip
            yield from leaves(value, "/".join([path, key] if path else [key]))
    elif isinstance(state, list | tuple):
        for place, value in enumerate(state):
            yield from leaves(value, f"{path}/{place}" if path else str(place))
    elif isinstance(state, _SIMPLE) and not _has_more(state):
        yield path, state
    else:
        raise UsageError("synchronize", f"{path or 'the state'} is a {type(state).__name__}",
                         "dict, list, tuple, plain array, number, string or bytes")  # fmt: skip


def unhealthy(state: State) -> tuple[tuple[str, str], ...]:
    """List leaves that hold NaN or infinities; gives paths and which it is."""
    found = ((path, illness(leaf)) for path, leaf in leaves(state))
    return tuple((path, what) for path, what in found if what)


def _has_more(leaf: Leaf) -> bool:
    """Tell whether a leaf holds objects, or is an array of a class of its own."""
    if isinstance(leaf, np.ndarray) and type(leaf) not in (*CLASSES, np.memmap, type(np.ma.masked)):
        return True
    return isinstance(leaf, np.generic | np.ndarray) and leaf.dtype.hasobject


def _entry(path: str, leaf: Leaf) -> Entry:
    try:
        return entry_of(leaf)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # a class made in a function
        raise UsageError("synchronize", f"{path or 'the state'}: {error}",
                         "use Python's own numbers and strings") from error  # fmt: skip
