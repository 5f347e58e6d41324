"""The form of a call: all that reading looks at, but for addresses and contents.

Two calls of one form are read alike, if their arrays share no memory.
"""

from __future__ import annotations

from array import array
from typing import Any, Final, TypeAlias

import numpy as np
from mpi4py import MPI

#: Of a call; hashable.
CallForm: TypeAlias = tuple[Any, ...]

#: Values that are what they look like.
_VALUES: Final = frozenset({int, str, type(None), type(MPI.IN_PLACE)})
#: Handles, which stand for the same as long as the object has the same number.
_HANDLES: Final = frozenset({MPI.Op, MPI.Datatype})
#: A message with counts or a type is one of these.
SEQUENCES: Final = frozenset({list, tuple})
#: How many arguments are messages, the first ones: two where nothing else is said.
_MESSAGES: Final = {"barrier": 0, "bcast": 1}
#: More numbers than this are not worth a comparison.
_LONGEST: Final = 64


def form_of(operation: str, arguments: tuple[Any, ...]) -> CallForm | None:
    """Give the form of a call; None where reading may look at more.

    Local.  Who keeps a form of an op or a datatype keeps that alive.

    Parameters
    ----------
    operation : str
        For instance ``"allreduce"``.
    arguments : tuple
        What the caller passed.

    Returns
    -------
    tuple or None
        Equal for calls of one form.
    """
    messages = _MESSAGES.get(operation, 2)
    parts: list[Any] = [operation]
    others: list[Any] = []
    for spec in arguments[:messages]:
        kind, one = type(spec), spec
        if kind in SEQUENCES:
            if not spec:
                return None
            parts += (kind, len(spec))
            one, *rest = spec
            others += rest
            kind = type(one)
        if kind is np.ndarray:
            dtype = one.dtype  # types that are equal may have two letters
            parts += (kind, dtype, dtype.char, one.shape, one.strides, one.flags.num)
        elif kind in _VALUES:
            parts += (kind, one)
        elif kind is array:
            parts += (kind, one.typecode, len(one))
        elif kind is bytearray:
            parts += (kind, len(one))
        else:
            return None
    others += arguments[messages:]
    for one in others:
        kind = type(one)
        if kind in _HANDLES:
            parts += (kind, id(one), one.handle)
        elif kind in _VALUES:
            parts += (kind, one)
        elif kind is tuple and len(one) == 2 and type(one[0]) is int is type(one[1]):
            parts.append(one)
        elif kind in SEQUENCES and (numbers := _numbers(one)) is not None:
            parts.append(numbers)
        else:  # of an array of counts the contents count
            return None
    return tuple(parts)


def _numbers(given: Any) -> tuple[Any, ...] | None:
    """Give lists of counts as something hashable; None where they are none, or many."""
    parts: list[Any] = [type(given)]
    for one in given:
        kind = type(one)
        part = one if kind is int else _numbers(one) if kind in SEQUENCES else None
        if part is None or len(parts) > _LONGEST:
            return None
        parts.append(part)
    return tuple(parts)


def buffer_of(spec: Any) -> Any:
    """Give what holds the memory of a buffer specification.  Local."""
    return spec[0] if type(spec) in SEQUENCES else spec
