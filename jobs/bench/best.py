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
LAUNCH = "CLOSERANKS_BEST_LAUNCH"


@dataclass(frozen=True)
class Key:
    """What must be equal for two times to be compared.

    Parameters
    ----------
    name, dtype, op : str
        The operation.
    size_bytes : int
        Its size.
    batched : bool
        Whether calls were timed in batches.
    """

    name: str
    dtype: str
    op: str
    size_bytes: int
    batched: bool


@dataclass(frozen=True)
class Result:
    """The library's own time with one setting.

    Parameters
    ----------
    key : Key
        What was measured.
    p50_us : float
        Median, microseconds.
    setting : str
        Label of the setting.
    """

    key: Key
    p50_us: float
    setting: str


class Best:
    """The fastest result for each operation, size and way of timing.

    Parameters
    ----------
    results : iterable of Result
        From any number of launches.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self._fastest: dict[Key, Result] = {}
        self.settings: dict[str, dict[str, None]] = {}
        for result in results:
            self.settings.setdefault(result.key.name, {})[result.setting] = None
            known = self._fastest.get(result.key)
            if known is None or result.p50_us < known.p50_us:
                self._fastest[result.key] = result

    def get(self, key: Key) -> Result | None:
        """Return the fastest result, or None if no launch measured this."""
        return self._fastest.get(key)


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
    return [Result(Key(**one["key"]), one["p50_us"], one["setting"]) for one in found]
