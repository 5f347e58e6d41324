"""Calls with objects in which a rank tells why it has no object to give.

A rank may be unable to pickle its object, or have another number of objects
than there are ranks.  If it left the call, the other ranks would wait for it.
So it takes part, and sends the reason in place of its object; the sign of a
length tells that.  Reductions carry the reason through the tree of mpi4py,
whose operation is ours there: it raises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.reduction.op import MEAN, Mean
from closeranks.errors import UsageError

_T = TypeVar("_T")
Bytes = NDArray[np.uint8]
#: Takes two objects; operations of MPI do, too.
Binary = MPI.Op | Mean | Callable[[Any, Any], Any]
#: Objects that every serializer takes, as far as we know.
_PLAIN: Final = frozenset({int, float, complex, bool, str, bytes, type(None)})
#: Of the words that others are told, so many characters.
_MOST: Final = 1000
_REMEDY: Final = "pass what can be pickled and combined, and a list of one object for each rank"


class ObjectParts:
    """What this rank gives to a call that moves objects, and what it gets.

    Local.

    Parameters
    ----------
    operation : str
        The call.
    rank : int
        This rank.
    """

    def __init__(self, operation: str, rank: int) -> None:
        self._operation, self._rank = operation, rank
        self._met: Exception | None = None
        self._told = ""

    def pickled(self, one: object) -> tuple[Bytes, int]:
        """Give an object's bytes and their number; or words, and a number below 0."""
        try:
            data = np.frombuffer(MPI.pickle.dumps(one), np.uint8)
        except Exception as error:  # the object's, whatever it is
            return self._refused(error)
        return data, data.size

    def all_pickled(
        self, objects: Iterable[object] | None, size: int
    ) -> tuple[Bytes, NDArray[np.int64]]:
        """Give the bytes of an object for each rank, side by side, and their numbers."""
        try:
            every = [None] * size if objects is None else list(objects)
            if len(every) != size:
                raise UsageError(self._operation, f"{len(every)} objects for {size} ranks",
                                 "pass one for each rank")  # fmt: skip
            data = [np.frombuffer(MPI.pickle.dumps(one), np.uint8) for one in every]
            lengths = [one.size for one in data]
        except Exception as error:
            words, length = self._refused(error)
            data, lengths = [words] * size, [length] * size
        return np.concatenate(data), np.array(lengths, np.int64)

    def unpickled(self, data: Bytes, length: int) -> Any:
        """Give the object that has come, None if there are words in its place."""
        if length < 0:
            self._told = self._told or data.tobytes().decode()
            return None
        return MPI.pickle.loads(data)

    def checked(self, found: _T) -> _T:
        """Give what has come; raise what has kept this rank or another one from its part."""
        if self._met is not None:
            raise self._met
        if self._told:
            raise UsageError(self._operation, self._told, _REMEDY)
        return found

    def _refused(self, error: Exception) -> tuple[Bytes, int]:
        self._met = error
        words = np.frombuffer(_words(self._rank, error).encode(errors="replace"), np.uint8)
        return words, -words.size


class Refusal(NamedTuple):
    """Stands for the result of a reduction that a rank could not go on with.

    Attributes
    ----------
    words : str
        Which rank, and why.
    """

    words: str


class _Carried:
    """An object on its way through a reduction, or why it cannot go on."""

    __slots__ = ("by", "value")

    def __init__(self, value: object, by: Combining | None = None) -> None:
        self.value, self.by = value, by

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _arrived, (MPI.pickle.dumps(self.value),)
        except Exception as error:  # the object's, whatever it is
            assert self.by is not None, "what has arrived can be pickled again"
            return Refusal, self.by.refused(error)


def _arrived(data: bytes) -> object:
    try:
        return _Carried(MPI.pickle.loads(data))
    except Exception as error:
        return Refusal(f"an object cannot be unpickled: {type(error).__name__}: {error}"[:_MOST])


class Combining:
    """The operation of a reduction of objects: an error in it is a result.

    Local.

    Parameters
    ----------
    operation : str
        The call.
    op : MPI.Op, MEAN or callable, or None
        Of two objects; None is the sum.
    rank : int
        This rank.
    parts : int
        How many objects are combined for it: by so many `MEAN` divides.

    Raises
    ------
    UsageError
        If nothing can be combined by ``op``; nothing has been sent.
    """

    def __init__(self, operation: str, op: Binary | None, rank: int, parts: int) -> None:
        self._operation, self._rank = operation, rank
        self._divisor = parts if op is MEAN else 0
        self._op: Any = MPI.SUM if op is MEAN or op is None else op
        self._met: Exception | None = None
        if not callable(self._op) or (isinstance(self._op, MPI.Op) and self._op == MPI.OP_NULL):
            raise UsageError(operation, f"op is {op!r}",
                             "pass an MPI.Op, cr.MEAN or a function of two objects")  # fmt: skip

    def given(self, one: object) -> object:
        """Give what travels in an object's place."""
        is_array = type(one) is np.ndarray and not one.dtype.hasobject
        return one if type(one) in _PLAIN or is_array or not _travels() else _Carried(one, self)

    def __call__(self, one: object, other: object) -> object:
        """Combine two objects, or give why that cannot be; raises nothing."""
        for part in (one, other):
            if isinstance(part, Refusal):
                return part
        try:
            return self.given(self._op(_value(one), _value(other)))
        except Exception as error:  # of the user's operation
            return Refusal(*self.refused(error))

    def refused(self, error: Exception) -> tuple[str]:
        """Note what has kept this rank from going on; gives the words for the others."""
        self._met = self._met or error
        return (_words(self._rank, error),)

    def result(self, found: object) -> Any:
        """Give what the user gets, or raise what this or another rank has met."""
        if self._met is not None:
            raise self._met
        if isinstance(found, Refusal):
            raise UsageError(self._operation, found.words, _REMEDY)
        total: Any = _value(found)
        if not self._divisor or total is None:
            return total
        try:
            return total / self._divisor
        except TypeError:
            raise UsageError(self._operation, f"a sum that is a {type(total).__name__} has no mean",
                             "pass numbers or arrays, or another op") from None  # fmt: skip


def _value(one: object) -> object:
    return one.value if isinstance(one, _Carried) else one


def _travels() -> bool:
    """Tell whether the serializer in use takes objects of classes; some take none."""
    try:
        return isinstance(MPI.pickle.loads(MPI.pickle.dumps(_Carried(None))), _Carried)
    except Exception:
        return False


def _words(rank: int, error: Exception) -> str:
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # its text may be anybody's code
        said = type(error).__name__
    return f"rank {rank} has given up: {said}"[:_MOST]
