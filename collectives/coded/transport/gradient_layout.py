"""How a gradient lies in memory: one array, or a list of arrays, as flat vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.comms import argument
from closeranks.errors import UsageError

#: Where the elements of each type begin: at a line of the caches.
_LINE: Final = 64
#: Types in which short floats are kept and added; they are rounded when the sum is given.
_SUMMED_AS: Final = {"float16": np.dtype(np.float32), "bfloat16": np.dtype(np.float32)}
_CALL: Final = "CodedAllreduce.step"

Bytes = NDArray[np.uint8]
#: Flat views of a vector, one a type of sums.
Flats = list[NDArray[Any]]


class _Section(NamedTuple):
    """All elements that are added in one type."""

    dtype: np.dtype[Any]
    start: int
    length: int


class GradientLayout:
    """Shapes and element types of a gradient, and where they lie in a vector.

    Arrays that are added in one type lie side by side.  Short floats are added
    in float32, from the first micro-batch on, and rounded once, by `unpack`.
    All ranks have the same layout.

    Parameters
    ----------
    arrays : sequence of ((int, ...), dtype)
        Shape and element type of each array.
    is_list : bool
        Whether the gradient is a list, not one array.

    Attributes
    ----------
    nbytes : int
        Of a vector; a multiple of 64.
    key : tuple
        Equal for equal layouts.
    """

    def __init__(
        self, arrays: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], *, is_list: bool
    ) -> None:
        self.key = (is_list, tuple((shape, dtype.str, dtype.name) for shape, dtype in arrays))
        self._arrays, self._is_list = tuple(arrays), is_list
        self._sections: list[_Section] = []
        #: Array -> section, first element there, and the one behind the last.
        self._places: list[tuple[int, int, int]] = []
        counts: dict[np.dtype[Any], int] = {}
        firsts = []
        for shape, dtype in arrays:
            wide = _SUMMED_AS.get(dtype.name, dtype)
            firsts.append(counts.get(wide, 0))
            counts[wide] = firsts[-1] + math.prod(shape)
        start = 0
        for dtype, count in counts.items():
            self._sections.append(_Section(dtype, start, count))
            start = -(-(start + count * dtype.itemsize) // _LINE) * _LINE
        self.nbytes = max(start, _LINE)
        order = list(counts)
        for (shape, dtype), first in zip(arrays, firsts, strict=True):
            wide = _SUMMED_AS.get(dtype.name, dtype)
            self._places.append((order.index(wide), first, first + math.prod(shape)))

    @classmethod
    def of(cls, gradient: object) -> GradientLayout:
        """Read the layout of a gradient.

        Local.

        Parameters
        ----------
        gradient : ndarray, or list or tuple of ndarray
            What `compute_part` has given.

        Raises
        ------
        UsageError
            If it is something else, or has elements that are no numbers.
        """
        arrays = _arrays(gradient)
        for array in arrays:
            if array.dtype.kind not in "fciu" and array.dtype.name not in _SUMMED_AS:
                problem = f"elements of type {array.dtype}"
                raise UsageError(_CALL, problem, "let compute_part give numbers")
        is_list = not isinstance(gradient, np.ndarray)
        return cls([(array.shape, array.dtype) for array in arrays], is_list=is_list)

    def __str__(self) -> str:
        some = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in self._arrays[:4])
        more = f", ... ({len(self._arrays)} arrays)" if len(self._arrays) > 4 else ""
        return f"[{some}{more}]" if self._is_list else some

    @property
    def element_types(self) -> list[np.dtype[Any]]:
        """Element types of the gradient, each once."""
        return list(dict.fromkeys(dtype for _, dtype in self._arrays))

    def flats(self, memory: Bytes) -> Flats:
        """View the bytes of a vector as flat arrays, one a type of sums.  Local."""
        found = []
        for dtype, start, count in self._sections:
            stop = start + count * dtype.itemsize
            found.append(memory[start:stop].view(dtype))
        return found

    def add(self, flats: Flats, gradient: object, coefficient: float, *, is_first: bool) -> None:
        """Add a gradient to a vector, or write it there.

        Local.

        Parameters
        ----------
        flats : list of ndarray
            The vector.
        gradient : ndarray, or list or tuple of ndarray
            What `compute_part` has given.
        coefficient : float
            Its factor.
        is_first : bool
            Whether what stands in the vector counts for nothing.

        Raises
        ------
        UsageError
            If its layout is another one; the vector is unchanged then.
        """
        arrays = _arrays(gradient)
        is_list = not isinstance(gradient, np.ndarray)
        found = [(array.shape, array.dtype) for array in arrays]
        if is_list != self._is_list or found != list(self._arrays):
            problem = f"compute_part gave {GradientLayout.of(gradient)}, and {self} before"
            raise UsageError(_CALL, problem, "give arrays of the same shapes and types always")
        for array, (section, first, last) in zip(arrays, self._places, strict=True):
            target = flats[section][first:last].reshape(array.shape)
            if is_first and coefficient == 1:
                np.copyto(target, array)
            elif is_first:
                np.multiply(array, target.dtype.type(coefficient), out=target)
            elif coefficient == 1:
                np.add(target, array, out=target)
            else:
                np.add(target, array * target.dtype.type(coefficient), out=target)

    def unpack(self, flats: Flats) -> Any:
        """Copy a vector to new arrays, in the form of the gradient.

        Local.  Here short floats are rounded.
        """
        found = [
            flats[section][first:last].reshape(shape).astype(dtype)
            for (shape, dtype), (section, first, last) in zip(
                self._arrays, self._places, strict=True
            )
        ]
        return found if self._is_list else found[0]

    def shard(self, flats: Flats, index: int, count: int) -> Flats:
        """View one of ``count`` parts of a vector of almost equal length.  Local."""
        return [
            flat[len(flat) * index // count : len(flat) * (index + 1) // count] for flat in flats
        ]


def weighted_sum(out: Flats, terms: Sequence[tuple[Flats, float]]) -> None:
    """Write the weighted sum of vectors, in the order of the terms.

    Local.

    Parameters
    ----------
    out : list of ndarray
        Where it is written; none of the terms.
    terms : sequence of (list of ndarray, float)
        Vectors and their factors; without any the sum is 0.
    """
    for index, target in enumerate(out):
        if not terms:
            target[...] = 0
        for number, (flats, weight) in enumerate(terms):
            term = flats[index]
            if weight != 1:
                term = term * target.dtype.type(weight)
            if number == 0:
                np.copyto(target, term)
            else:
                np.add(target, term, out=target)


def copied(gradient: object) -> list[NDArray[Any]] | NDArray[Any]:
    """Copy the arrays of a gradient.  Local."""
    arrays = [array.copy() for array in _arrays(gradient)]
    return arrays[0] if isinstance(gradient, np.ndarray) else arrays


def _arrays(gradient: object) -> list[NDArray[Any]]:
    """Give the arrays of a gradient."""
    if isinstance(gradient, np.ndarray):
        return [gradient]
    if isinstance(gradient, list | tuple) and all(isinstance(one, np.ndarray) for one in gradient):
        return list(gradient)
    problem = f"compute_part gave {argument.shown(gradient)}"
    raise UsageError(_CALL, problem, "let it give an array of NumPy, or a list of arrays")
