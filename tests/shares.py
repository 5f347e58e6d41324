"""Where the time of tests goes: seconds of each file, the longest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def shares(spent: Iterable[tuple[str, float]], most: int = 25) -> str:
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
