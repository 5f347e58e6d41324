"""What one run of the tests takes of long lists of parameters, and where its time goes."""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

_T = TypeVar("_T")

#: "all", or the number of a share: the days since the beginning of 1970.
SEED = os.environ.get("TESTS_SEED") or str(int(time.time()) // 86400)


def share(sets: Sequence[_T], of: int, name: str = "", *, least: int = 1) -> list[_T]:
    """Give every `of`-th of some sets of parameters, other ones each day, or all.

    Parameters
    ----------
    sets : sequence
        In an order that does not change from run to run.
    of : int
        After so many days all sets have been given.
    name : str
        Of the test: tests of one day do not all take their first sets.
    least : int
        1, or 0 if a list shorter than `of` may give nothing on some days.
    """
    if SEED == "all":
        return list(sets)
    step = min(of, len(sets)) if least else of
    first = (zlib.crc32(name.encode()) + int(SEED)) % max(1, step)
    return list(sets)[first::step]


def table(ended: Iterable[tuple[str, str, float]]) -> str:
    """Write how the tests of each folder ended, and their seconds.

    Parameters
    ----------
    ended : iterable of (str, str, float)
        Name of a test, how a phase of it ended ("passed", "skipped", "failed"; ""
        for a phase that counts for its seconds alone), and the seconds of the phase.
    """
    kinds = ("passed", "skipped", "failed")
    counts: Counter[tuple[str, str]] = Counter()
    spent: Counter[str] = Counter()
    for name, kind, seconds in ended:
        parts = name.partition("::")[0].removeprefix("tests/").split("/")
        folder = parts[0] if len(parts) > 1 else "."
        for key in (folder, "all"):
            counts[key, kind] += 1
            spent[key] += round(1000 * seconds)
    rows = [
        f"| {key} | {' | '.join(str(counts[key, kind]) for kind in kinds)} | {ms / 1000:.0f} |"
        for key, ms in sorted(spent.items(), key=lambda row: (row[0] == "all", row[0]))
    ]
    return "\n".join([f"| folder | {' | '.join(kinds)} | s |", "|---|---|---|---|---|", *rows])


def seconds_by_file(spent: Iterable[tuple[str, float]], most: int = 25) -> str:
    """Write the seconds of each file, of those with the most.

    Parameters
    ----------
    spent : iterable of (str, float)
        Name of a test as pytest gives it, and seconds; a test may come several times.
    most : int
        How many files.
    """
    total: Counter[str] = Counter()
    for name, seconds in spent:
        path = name.partition("::")[0]
        total[path.removeprefix("tests/").removesuffix(".py")] += round(1000 * seconds)
    said = [f"{name} {ms / 1000:.0f} s" for name, ms in total.most_common(most)]
    return ", ".join(said)
