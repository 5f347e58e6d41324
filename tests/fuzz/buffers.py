"""Memory of the fuzzer's messages, between guards, and the forms in which it is passed."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from tests.fuzz.elements import C_NAMES, KINDS, LETTERS, Bytes, Kind

#: Bytes before and after each message that nobody may touch.
GUARD = 64

#: How a message is written: ``a`` is its array, ``t`` its type, ``c`` the count of a
#: block, ``v`` and ``d`` counts and displacements.
FORMS = {
    "array": "{a}",
    "typed": "[{a}, {t}]",
    "counted": "({a}, {c}, {t})",
    "listed": "[{a}, {c}, {t}]",
    "number": "[{a}, {c}]",
    "shifted": "[{a}, ({c}, 0), {t}]",
    "four": "[{a}, {c}, 0, {t}]",
    "bytes": "[{a}.view('u1'), {t}]",
    "bytes counted": "({a}.view('u1'), {c}, {t})",
    "memoryview": "memoryview({a})",
    "memoryview typed": "[memoryview({a}), {t}]",
    "memoryview bytes": "[memoryview({a}.view('u1')), {t}]",
    "cube": "{a}.reshape(1, -1, 1)",
    "scalar": "({a}.reshape(()) if {a}.size == 1 else {a})",
    "fortran": "{a}.reshape((2, -1) if {a}.size % 2 == 0 else (-1, 1), order='F')",
    "strided": "{a}",
    "column": "{a}",
    "reversed": "{a}",
}
#: The same for blocks of different sizes.
VECTORS = {
    "array": "[{a}, {v}]",
    "typed": "[{a}, {v}, {t}]",
    "pair": "[{a}, ({v}, {d}), {t}]",
    "tuple": "({a}, ({v}, {d}), {t})",
    "four": "[{a}, {v}, {d}, {t}]",
    "numbers": "[{a}, (np.array({v}, 'i4'), np.array({d}, 'i4')), {t}]",
    "untyped": "[{a}, ({v}, {d})]",
    "bytes": "[{a}.view('u1'), ({v}, {d}), {t}]",
    "strided": "[{a}, ({v}, {d})]",
}
#: Those whose array has gaps, which mpi4py refuses; how it lies in twice or thrice the memory.
SPREAD = {
    "strided": (2, "{m}.view({k})[::2]"),
    "column": (3, "{m}.view({k}).reshape(-1, 3)[:, 1]"),
    "reversed": (1, "{m}.view({k})[::-1]"),
}
#: Who owns the memory; those that are none of NumPy's and whole messages.
OWNERS = ("numpy", "shared", "array.array", "ctypes", "bytearray")
WHOLE = OWNERS[2:]


class Part(NamedTuple):
    """What one rank passes on one side of a call.

    Attributes
    ----------
    entries : int
        Elements in its memory.
    block : int
        Elements of one block.
    counts, displs : list of int or None
        Of blocks of different sizes.
    """

    entries: int
    block: int
    counts: list[int] | None = None
    displs: list[int] | None = None


class Side(NamedTuple):
    """Memory and message of one side of a call.

    Attributes
    ----------
    window : ndarray of uint8
        The memory with its guards.
    entries : ndarray
        Its elements.
    spec : object
        What is passed.
    look : callable
        Gives the elements of a copy of the window.
    gaps : bool
        Whether mpi4py refuses the array.
    """

    window: Bytes
    entries: NDArray[Any]
    spec: Any
    look: Callable[[Bytes], NDArray[Any]]
    gaps: bool = False


def rendered(form: str, part: Part, kind: Kind, a: str) -> str:
    """Write a message as an expression of Python."""
    if part.counts is not None:
        return VECTORS[form].format(a=a, t=kind.mpi, v=part.counts, d=part.displs)
    return FORMS[form].format(a=a, t=kind.mpi, c=part.block)


_types: dict[str, MPI.Datatype] = {}


def datatype(kind: Kind) -> MPI.Datatype | None:
    """Give the MPI type of a kind, made once."""
    if kind.mpi and kind.mpi not in _types:
        _types[kind.mpi] = eval(kind.mpi, {"MPI": MPI})
    return _types.get(kind.mpi)


def owned(owner: str, name: str, entries: int) -> Any:
    """Make an object that is a whole message."""
    nbytes = entries * KINDS[name].nbytes
    if owner == "bytearray":
        return bytearray(nbytes)
    if owner == "ctypes":
        return (getattr(ctypes, C_NAMES[name]) * entries)()
    return array.array(LETTERS[name], bytes(nbytes))


class Pool:
    """Memory that calls use again and again.

    Parameters
    ----------
    shared : callable
        ``shared(nbytes)`` gives an array in node-shared memory; collective.
    """

    def __init__(self, shared: Callable[[int], Bytes] | None = None) -> None:
        self._shared = shared
        self._kept: dict[tuple[object, ...], Any] = {}

    def side(self, given: dict[str, Any], name: str, part: Part) -> Side:
        """Give memory and message of one side of a call.

        Parameters
        ----------
        given : dict
            Slot, owner, form, shift; ``fresh`` drops what the slot had before.
        name : str
            Of the kind.
        part : Part
            Its shape.
        """
        kind = KINDS[name]
        owner, form = given["owner"], given["form"]
        if self._shared is None and owner == "shared":
            owner = "numpy"  # the reference has no such memory
        if owner in WHOLE:
            return self._whole(given, owner, name, part)
        spread, view = SPREAD.get(form, (1, "{m}.view({k})"))
        nbytes = part.entries * kind.nbytes * spread
        window = self._window(given, owner, nbytes)
        start = GUARD + given["shift"]

        def look(whole: Bytes) -> NDArray[Any]:
            names = {"m": whole[start : start + nbytes], "k": kind.dtype}
            found: NDArray[Any] = eval(view.format(m="m", k="k"), names)
            return found

        entries = look(window)
        return Side(window, entries, spec_of(form, part, kind, entries), look, form in SPREAD)

    def _whole(self, given: dict[str, Any], owner: str, name: str, part: Part) -> Side:
        key = given["slot"], owner, name, part.entries
        if given.get("fresh"):
            self._kept.pop(key, None)
        if key not in self._kept:
            self._kept[key] = owned(owner, name, part.entries)
        thing, kind = self._kept[key], KINDS[name]
        window = np.frombuffer(thing, np.uint8) if part.entries else np.empty(0, np.uint8)
        entries = window.view(kind.dtype)
        spec = spec_of(given["form"], part, kind, thing)
        return Side(window, entries, spec, lambda whole: whole.view(kind.dtype))

    def _window(self, given: dict[str, Any], owner: str, nbytes: int) -> Bytes:
        """Give room between guards; the same place for the same slot, unless it is fresh."""
        key, need = (given["slot"], owner), nbytes + 2 * GUARD + given["shift"]
        if given.get("fresh"):
            self._kept.pop(key, None)
        kept = self._kept.get(key)
        if owner == "shared":  # collective, so as much for all, whatever each needs
            room = given["room"]
            if kept is None or len(kept) < room:
                assert self._shared is not None
                kept = self._kept[key] = self._shared(room)
        elif kept is None or len(kept) < need:
            kept = self._kept[key] = np.empty(max(need, 4096), np.uint8)
        found: Bytes = kept[:need]
        return found


def spec_of(form: str, part: Part, kind: Kind, thing: Any) -> Any:
    """Give what is passed for an array."""
    if part.counts is not None:
        text = VECTORS[form].format(a="a", t="t", v="v", d="d")
    else:
        text = FORMS[form].format(a="a", t="t", c="c")
    names = {"a": thing, "t": datatype(kind), "c": part.block, "np": np}
    return eval(text, names | {"v": part.counts, "d": part.displs})
