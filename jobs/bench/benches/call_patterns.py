"""The calls that the benchmark ``varied`` makes, drawn from a seed: pure.

A draw depends on the seed, the pattern and the number of the block alone.  So
all ranks and both sides of a comparison make the same calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np

from closeranks.collectives.arguments.call_key import size_class

_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
#: Sizes drawn at random for the calls before the measurement, of each size class.
_POOL: Final = 64
#: Sizes of the pattern ``cyclic``.
CYCLE: Final = 2000
_ELEMENTS: Final = ("float32", "float64", "int16", "int32", "int64", "uint8")
_METHODS: Final = ("Allreduce", "Bcast", "Reduce")
#: Sizes of the pattern ``kinds``, each drawn from its part of the range.
_KIND_SIZES: Final = 5
#: Widest element: sizes of kinds are multiples of it.
_WIDEST: Final = 8


class VariedCall(NamedTuple):
    """One call of a pattern, without its buffers.

    Attributes
    ----------
    method : str
        Of the communicator.
    nbytes : int
        Bytes of the vector, a multiple of the element's.
    dtype, op : str
        NumPy's name of the element, and the reduction in MPI's namespace.
    """

    method: str
    nbytes: int
    dtype: str = "float32"
    op: str = "SUM"

    @property
    def kind(self) -> tuple[str, int]:
        """The method and the size class: calls of one kind share a choice."""
        return self.method, size_class(self.nbytes)


@dataclass(frozen=True)
class CallPattern:
    """How the calls of a program change.

    Parameters
    ----------
    name : str
        In rows.
    family : str
        What ``--patterns`` calls it.
    low, high : int
        Sizes are from `low` to less than `high` bytes; a pattern of one size has
        that as both.
    calls : int
        In a block.
    draw : callable
        (pattern, seed, block, calls) -> the calls of a block.
    pool : callable
        (pattern, seed) -> calls to make before the measurement, in turn.
    each : int, optional
        Calls between two pauses of the clock; default: all of a block.
    pause : str, optional
        What happens in a pause: ``"split"`` makes a communicator, ``"step"``
        computes and empties the caches.
    fresh : bool, optional
        Whether each call has memory mappings of its own.
    offset : int, optional
        Bytes from an aligned address to a buffer.
    most : int, optional
        Calls that can be drawn in all.
    """

    name: str
    family: str
    low: int
    high: int
    calls: int
    draw: Callable[[CallPattern, int, int, int], list[VariedCall]]
    pool: Callable[[CallPattern, int], list[VariedCall]]
    each: int = 0
    pause: str = ""
    fresh: bool = False
    offset: int = 0
    most: int | None = None


def chosen(families: Sequence[str]) -> list[CallPattern]:
    """Give the patterns of some families.

    Parameters
    ----------
    families : sequence of str
        As in `FAMILIES`.

    Returns
    -------
    list of CallPattern
        In the order of `PATTERNS`.
    """
    return [pattern for pattern in PATTERNS if pattern.family in families]


def _generator(seed: int, name: str, block: int = 0) -> np.random.Generator:
    """Make what draws a block of a pattern; any seed is fine."""
    return np.random.default_rng((seed % (1 << 64), crc32(name.encode()), block))


def _spread(rng: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    """Draw sizes, each factor of two being as likely as any other."""
    sizes = np.exp(rng.uniform(math.log(low), math.log(high), count)).astype(int)
    return [int(size) for size in np.clip(sizes, low, high - 1)]


def _of_bytes(nbytes: int) -> VariedCall:
    """Make an all-reduce of exactly so many bytes: of floats where they fit."""
    if nbytes % 4:
        return VariedCall("Allreduce", nbytes, "uint8", "MAX")
    return VariedCall("Allreduce", nbytes)


def _random(rng: np.random.Generator, low: int, high: int, count: int) -> list[VariedCall]:
    """Draw all-reduces, of floats or now and then of bytes."""
    sizes = zip(_spread(rng, low, high, count), rng.random(count), strict=True)
    return [_of_bytes(size - size % 4 if share < 0.5 else size) for size, share in sizes]


def _parts(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Cut a range of sizes into its size classes."""
    while low < high:
        end = min(1 << size_class(low), high)
        yield low, end
        low = end


def _draw_sizes(pattern: CallPattern, seed: int, block: int, calls: int) -> list[VariedCall]:
    return _random(_generator(seed, pattern.name, block + 1), pattern.low, pattern.high, calls)


def _pool_sizes(pattern: CallPattern, seed: int) -> list[VariedCall]:
    rng = _generator(seed, pattern.name)
    return [one for low, end in _parts(pattern.low, pattern.high)
            for one in _random(rng, low, end, _POOL)]  # fmt: skip


def _draw_never(pattern: CallPattern, seed: int, block: int, calls: int) -> list[VariedCall]:
    """Take the next sizes of a random order; those of the pool are left out."""
    known = {call.nbytes for call in _pool_never(pattern, seed)}
    sizes = [size for size in range(pattern.low, pattern.high) if size not in known]
    order = _generator(seed, pattern.name).permutation(sizes)
    return [_of_bytes(int(size)) for size in order[block * calls : (block + 1) * calls]]


def _pool_never(pattern: CallPattern, _seed: int) -> list[VariedCall]:
    return [_of_bytes(low) for low, _ in _parts(pattern.low, pattern.high)]


def _draw_cyclic(pattern: CallPattern, seed: int, block: int, calls: int) -> list[VariedCall]:
    cycle = _pool_cyclic(pattern, seed)
    return [cycle[at % len(cycle)] for at in range(block * calls, (block + 1) * calls)]


def _pool_cyclic(pattern: CallPattern, seed: int) -> list[VariedCall]:
    sizes = _generator(seed, pattern.name).permutation(np.arange(pattern.low, pattern.high))
    return [_of_bytes(int(size)) for size in sizes[:CYCLE]]


def _draw_kinds(pattern: CallPattern, seed: int, block: int, calls: int) -> list[VariedCall]:
    """Make every kind as often as any other, in a new order each time."""
    rng, kinds = _generator(seed, pattern.name, block + 1), _pool_kinds(pattern, seed)

    def orders() -> Iterator[VariedCall]:
        while True:
            yield from (kinds[at] for at in rng.permutation(len(kinds)))

    return list(islice(orders(), calls))


def _pool_kinds(pattern: CallPattern, seed: int) -> list[VariedCall]:
    rng = _generator(seed, pattern.name)
    ends = np.geomspace(pattern.low, pattern.high, _KIND_SIZES + 1)
    sizes = [int(rng.uniform(low, end)) // _WIDEST * _WIDEST
             for low, end in pairwise(ends)]  # fmt: skip
    return [VariedCall(method, max(size, _WIDEST), dtype)
            for method, size, dtype in product(_METHODS, sizes, _ELEMENTS)]  # fmt: skip


def _draw_odd(pattern: CallPattern, seed: int, block: int, calls: int) -> list[VariedCall]:
    sizes = _spread(_generator(seed, pattern.name, block + 1), pattern.low, pattern.high, calls)
    return [VariedCall("Allreduce", size, "uint8", "MAX") for size in sizes]


def _pool_odd(pattern: CallPattern, seed: int) -> list[VariedCall]:
    rng = _generator(seed, pattern.name)
    return [VariedCall("Allreduce", size, "uint8", "MAX")
            for low, end in _parts(pattern.low, pattern.high)
            for size in _spread(rng, low, end, _POOL)]  # fmt: skip


def _draw_one(pattern: CallPattern, _seed: int, _block: int, calls: int) -> list[VariedCall]:
    return [_of_bytes(pattern.low)] * calls


def _pool_one(pattern: CallPattern, _seed: int) -> list[VariedCall]:
    return [_of_bytes(pattern.low)]


def _sizes(name: str, low: int, high: int, calls: int) -> CallPattern:
    return CallPattern(name, "sizes", low, high, calls, _draw_sizes, _pool_sizes)


def _fresh(name: str, nbytes: int, calls: int) -> CallPattern:
    return CallPattern(name, "fresh", nbytes, nbytes, calls, _draw_one, _pool_one, fresh=True)


def _step(name: str, nbytes: int) -> CallPattern:
    return CallPattern(name, "step", nbytes, nbytes, 10, _draw_one, _pool_one,
                       each=1, pause="step")  # fmt: skip


#: All patterns, in the order of the rows.
PATTERNS: Final = (
    _sizes("sizes-4K", 8, 4 * _KIB, 200),
    _sizes("sizes-160K", 8, 160 * _KIB, 200),
    _sizes("sizes-3M", 160 * _KIB, 3 * _MIB, 20),
    CallPattern("never", "never", 8, 4 * _KIB, 200, _draw_never, _pool_never,
                most=4 * _KIB - 8 - 9),
    CallPattern("cyclic", "cyclic", 8, 4 * _KIB, 250, _draw_cyclic, _pool_cyclic),
    CallPattern("kinds", "kinds", 8, 64 * _KIB, 180, _draw_kinds, _pool_kinds),
    CallPattern("comms", "comms", 8, 4 * _KIB, 200, _draw_sizes, _pool_sizes,
                each=50, pause="split"),
    _fresh("fresh-4K", 4 * _KIB, 100),
    _fresh("fresh-256K", 256 * _KIB, 40),
    CallPattern("odd", "odd", 8, 160 * _KIB, 200, _draw_odd, _pool_odd, offset=1),
    _step("step-64K", 64 * _KIB),
    _step("step-1M", _MIB),
)  # fmt: skip
#: What ``--patterns`` takes, in that order.
FAMILIES: Final = tuple(dict.fromkeys(pattern.family for pattern in PATTERNS))
