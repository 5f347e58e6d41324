"""State: a nest of dicts, lists and tuples whose leaves all ranks hold alike."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from closeranks.collectives.contents import DIGEST_BYTES, Entry, Leaf, entry_of
from closeranks.errors import UsageError

#: What a leaf may be.
_SIMPLE: Final = (bool, int, float, complex, str, bytes, type(None), np.generic, np.ndarray)

State: TypeAlias = Any


class Table(NamedTuple):
    """A state without its bytes.

    Attributes
    ----------
    shape : bytes
        The nest, with numbers for leaves.
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
            whole.update(path.encode() + b"\0" + entry.digest)
        return whole.digest()

    def unlike(self, other: Table) -> tuple[str, ...]:
        """List the leaves of another state that this one lacks or has otherwise."""
        mine = self.entries
        return tuple(path for path, entry in other.entries.items() if mine.get(path) != entry)


def table(state: State) -> Table:
    """Describe a state; reads every byte of it.

    Local.

    Parameters
    ----------
    state : dict, list or tuple
        A nest of them, of arrays, numbers, strings and bytes.

    Returns
    -------
    Table
        What it holds.

    Raises
    ------
    UsageError
        If something else is in it, or a key of a dict is no string.
    """
    found = dict(leaves(state))
    numbers = iter(range(len(found)))
    shape = pickle.dumps(_mapped(state, lambda _: next(numbers)))
    return Table(shape, {path: entry_of(leaf) for path, leaf in found.items()})


def leaves(state: State, path: str = "") -> Iterator[tuple[str, Leaf]]:
    """Give the leaves of a state with their paths, in its order.  Local."""
    if isinstance(state, dict):
        for key, value in state.items():
            if not isinstance(key, str):
                raise UsageError("synchronize", f"the key {key!r} of {path or 'the state'}",
                                 "use strings")  # fmt: skip
            yield from leaves(value, f"{path}/{key}" if path else key)
    elif isinstance(state, list | tuple):
        for place, value in enumerate(state):
            yield from leaves(value, f"{path}/{place}" if path else str(place))
    elif isinstance(state, _SIMPLE) and not _holds_objects(state):
        yield path, state
    else:
        raise UsageError("synchronize", f"{path or 'the state'} is a {type(state).__name__}",
                         "dict, list, tuple, array, number, string or bytes")  # fmt: skip


def rebuilt(state: State, shape: bytes, found: Mapping[str, Leaf]) -> State:
    """Put leaves into a nest; dicts and lists at its top stay the same objects.

    Parameters
    ----------
    state : dict, list or tuple
        What is there now.
    shape : bytes
        Of the new state, see `Table`.
    found : mapping of str to object
        All leaves of the new state by their paths, in order.

    Returns
    -------
    dict, list or tuple
        ``state`` itself unless it is a tuple or of another kind than the new one.
    """
    values = list(found.values())
    new = _mapped(pickle.loads(shape), values.__getitem__)
    if isinstance(state, dict) and isinstance(new, dict):
        state.clear()
        state.update(new)
        return state
    if isinstance(state, list) and isinstance(new, list):
        state[:] = new
        return state
    return new


def unhealthy(state: State) -> tuple[tuple[str, str], ...]:
    """List leaves that hold NaN or infinities; gives paths and which it is."""
    found = []
    for path, leaf in leaves(state):
        if isinstance(leaf, np.ndarray | np.inexact | float | complex):
            values = np.asarray(leaf)
            is_float = values.dtype.kind in "fc" or values.dtype.name == "bfloat16"
            if is_float and not np.isfinite(values).all():
                found.append((path, "NaN" if np.isnan(values).any() else "Inf"))
    return tuple(found)


def _mapped(state: State, change: Callable[[Any], Any]) -> State:
    """Change every leaf, in order."""
    if isinstance(state, dict):
        return {key: _mapped(value, change) for key, value in state.items()}
    if isinstance(state, list | tuple):
        changed = [_mapped(value, change) for value in state]
        if isinstance(state, tuple) and hasattr(state, "_fields"):
            return type(state)(*changed)
        return type(state)(changed)
    return change(state)


def _holds_objects(leaf: Leaf) -> bool:
    return isinstance(leaf, np.generic | np.ndarray) and leaf.dtype.hasobject
