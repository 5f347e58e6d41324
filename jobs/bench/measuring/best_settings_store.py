"""What the separate launches of ``--vs best`` measured, kept in a folder.

Each launch writes one file; later launches read the earlier ones to stop
early where they cannot win, the last one reads them all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "CLOSERANKS_BEST_DIR"
#: How the name of that folder begins.
PREFIX = ".closeranks-best-"
LAUNCH = "CLOSERANKS_BEST_LAUNCH"


@dataclass(frozen=True)
class Key:
    """What must be equal for two times to be compared.

    Parameters
    ----------
    name, algorithm, dtype, op : str
        The operation, and which of our algorithms meets the library's.
    size_bytes : int
        Its size.
    batched : bool
        Whether calls were timed in batches.
    """

    name: str
    algorithm: str
    dtype: str
    op: str
    size_bytes: int
    batched: bool


@dataclass(frozen=True)
class Result:
    """The library's own time with one setting, and ours beside it.

    Parameters
    ----------
    key : Key
        What was measured.
    p50_us : float
        Median, microseconds.
    setting : str
        Label of the setting.
    ours_us : float, optional
        Our median in the same launch, in turn with the library's; None where
        calls take so long that launches need not be told apart.
    """

    key: Key
    p50_us: float
    setting: str
    ours_us: float | None = None

    def speedup(self, ours_us: float) -> float:
        """Return the library's time over ours, of its own launch if known.

        Parameters
        ----------
        ours_us : float
            Our median in the launch that prints.

        Returns
        -------
        float
            Above 1 where we are faster.
        """
        return self.p50_us / (ours_us if self.ours_us is None else self.ours_us)


class Best:
    """The results for each operation, size and way of timing.

    Parameters
    ----------
    results : iterable of Result
        From any number of launches.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self._results: dict[Key, list[Result]] = {}
        self.settings: dict[str, dict[str, None]] = {}
        for result in results:
            self.settings.setdefault(result.key.name, {})[result.setting] = None
            self._results.setdefault(result.key, []).append(result)

    def fastest(self, key: Key) -> Result | None:
        """Return the result of the least time, or None if no launch measured this."""
        return min(self._results.get(key, []), key=lambda one: one.p50_us, default=None)

    def hardest(self, key: Key, ours_us: float) -> Result | None:
        """Return the result with the least speed-up; `ours_us` as in `Result.speedup`."""
        known = self._results.get(key, [])
        return min(known, key=lambda one: one.speedup(ours_us), default=None)


def folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the folder handed on by the launcher.

    Parameters
    ----------
    environ : mapping, optional
        The environment; default ``os.environ``.

    Returns
    -------
    Path or None
        None if the program was not started through a series of launches.
    """
    text = (os.environ if environ is None else environ).get(FOLDER)
    return Path(text) if text else None


def launch(environ: Mapping[str, str] | None = None) -> int | None:
    """Return which of the library's settings this launch measures.

    Parameters
    ----------
    environ : mapping, optional
        The environment; default ``os.environ``.

    Returns
    -------
    int or None
        None in the main launch.
    """
    text = (os.environ if environ is None else environ).get(LAUNCH)
    return int(text) if text else None


def write(path: Path, number: int, results: Iterable[Result]) -> None:
    """Write what one launch measured; local, one rank.

    Parameters
    ----------
    path : Path
        The folder.
    number : int
        Number of the launch.
    results : iterable of Result
        Its results.
    """
    text = json.dumps([asdict(result) for result in results], indent=1)
    (path / f"launch-{number}.json").write_text(text + "\n")


def read(path: Path) -> list[Result]:
    """Read what all launches so far measured; local, one rank.

    Parameters
    ----------
    path : Path
        The folder.

    Returns
    -------
    list of Result
        A launch that failed left no file and is not in it.
    """
    files = sorted(path.glob("launch-*.json"))
    found = [one for file in files for one in json.loads(file.read_text())]
    return [Result(**{**one, "key": Key(**one["key"])}) for one in found]
