"""Run-length text of integer rows: ``0..3*2 7`` is 0 0 1 1 2 2 3 3 7."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from closeranks.errors import TopologyError

_TOKEN = re.compile(r"(-?\d{1,9})(?:\.\.(\d{1,9}))?(?:\*(\d{1,9}))?")


def write_runs(values: npt.ArrayLike) -> str:
    """Write integers as text, folding repeats and counts.

    Parameters
    ----------
    values : array_like of int, shape (n,)
        At least -10**8 and below 10**9.

    Returns
    -------
    str
        Tokens ``a``, ``a*n`` (n times a), ``a..b`` (a, a+1, ... b) and
        ``a..b*n`` (each n times), separated by blanks.
    """
    row = np.asarray(values, dtype=np.int64)
    if not row.size:
        return ""
    starts = np.concatenate(([0], np.flatnonzero(np.diff(row)) + 1))
    counts = np.diff(np.append(starts, row.size))
    runs = row[starts]
    # a run continues its predecessor if it is one larger and as long
    joined = (np.diff(runs) == 1) & (np.diff(counts) == 0) & (runs[:-1] >= 0)
    heads = np.concatenate(([0], np.flatnonzero(~joined) + 1))
    tails = np.append(heads[1:], runs.size) - 1
    ends = zip(runs[heads].tolist(), runs[tails].tolist(), counts[heads].tolist(), strict=True)
    return " ".join(
        f"{first}" + (f"..{last}" if last > first else "") + (f"*{n}" if n > 1 else "")
        for first, last, n in ends
    )


def read_runs(text: str, size: int, what: str, *, fewer: bool = False) -> npt.NDArray[np.int64]:
    """Read what `write_runs` wrote, never expanding beyond ``size``.

    Parameters
    ----------
    text : str
        Tokens separated by blanks.
    size : int
        How many integers there must be.
    what : str
        Name of the row, for the error.
    fewer : bool, default False
        Whether fewer integers will do.

    Returns
    -------
    ndarray, shape (size,), dtype int64
        The integers.

    Raises
    ------
    TopologyError
        If a token is malformed or the number of integers differs.
    """
    pieces, total = [], 0
    for token in text.split():
        match = _TOKEN.fullmatch(token)
        if not match:
            raise TopologyError("topology file", f"{what} holds {token[:40]!r}", _WAY_OUT)
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        repeat = int(match[3]) if match[3] else 1
        total += max(last - first + 1, 0) * repeat
        if last < first or repeat < 1 or total > size:
            problem = f"{what}: {token!r} makes {total} of {size} numbers"
            raise TopologyError("topology file", problem, _WAY_OUT)
        pieces.append((first, last, repeat))
    if total != size and not fewer:
        raise TopologyError("topology file", f"{what} has {total} of {size} numbers", _WAY_OUT)
    return _expand(pieces)


_WAY_OUT = "write a, a*n, a..b or a..b*n"


def _expand(pieces: Iterable[tuple[int, int, int]]) -> npt.NDArray[np.int64]:
    table = np.array(list(pieces), dtype=np.int64).reshape(-1, 3)
    lengths = table[:, 1] - table[:, 0] + 1
    starts = np.cumsum(lengths) - lengths
    values = np.arange(lengths.sum()) + np.repeat(table[:, 0] - starts, lengths)
    return np.repeat(values, np.repeat(table[:, 2], lengths))


def ranges(values: Iterable[int], limit: int = 12) -> str:
    """Write integers for people: ``0-7, 12, 16-40:8``.

    Parameters
    ----------
    values : iterable of int
        Ascending.
    limit : int, default 12
        At most so many pieces; the rest is counted.

    Returns
    -------
    str
        ``a-b`` is a to b, ``a-b:s`` is every s-th from a to b.
    """
    numbers = list(values)
    pieces: list[str] = []
    i = 0
    while i < len(numbers):
        step = numbers[i + 1] - numbers[i] if i + 1 < len(numbers) else 1
        j = i
        while j + 1 < len(numbers) and numbers[j + 1] - numbers[j] == step:
            j += 1
        if j - i == 1 and step > 1:
            j = i
        if len(pieces) == limit:
            pieces.append(f"... ({len(numbers)} in all)")
            break
        end = "" if i == j else f"-{numbers[j]}" + ("" if step == 1 else f":{step}")
        pieces.append(f"{numbers[i]}{end}")
        i = j + 1
    return ", ".join(pieces)
