"""State: a nest of dicts, lists and tuples whose leaves all ranks hold alike."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from closeranks.collectives.replicated.finite_check import illness
from closeranks.collectives.replicated.leaf_bytes import (
    CLASSES,
    DIGEST_BYTES,
    Entry,
    Leaf,
    entry_of,
)
from closeranks.collectives.replicated.pytree import shape_of
from closeranks.errors import UsageError

#: What a leaf may be.
_SIMPLE: Final = (bool, int, float, complex, str, bytes, type(None), np.generic, np.ndarray)

State: TypeAlias = Any


class Table(NamedTuple):
    """A state without its bytes.

    Attributes
    ----------
    shape : bytes
        The nest without its leaves, see `shape_of`.
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
        If something else is in it, a key of a dict is no string, or two leaves
        have the same path.
    """
    found: dict[str, Entry] = {}
    for path, leaf in leaves(state):
        if path in found:
            raise UsageError("synchronize", f"two leaves have the path {path!r}",
                             "call a key otherwise: / stands between keys")  # fmt: skip
        found[path] = _entry(path, leaf)
    return Table(shape_of(state), found)


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
