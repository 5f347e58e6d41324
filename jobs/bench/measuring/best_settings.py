"""The settings of an MPI library that ``--vs best`` tries: fixed, printed.

Open MPI's are MCA parameters, MPICH's control variables; both are read from
the environment at MPI_Init, so each setting is a launch of its own.  Launch k
takes the k-th setting of every operation it measures.

The separate launches of ``--vs best`` keep their results in a folder.  Each
launch writes one file.  Later launches read the earlier ones to stop early
where they cannot win; the last one reads them all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from closeranks.errors import UsageError


@dataclass(frozen=True)
class Setting:
    """One way to configure the library for one operation.

    Parameters
    ----------
    label : str
        Its name in a table.
    environment : dict of str to str
        Variables that MPI_Init must find.
    """

    label: str
    environment: dict[str, str] = field(default_factory=dict)


# Open MPI 5: HAN is the default across nodes; the tuned algorithms only count without it.
_TUNED: dict[str, tuple[str, ...]] = {
    "barrier": ("recursive_doubling", "bruck", "tree"),
    "bcast": ("binomial", "scatter_allgather", "scatter_allgather_ring", "pipeline:65536"),
    "reduce": ("binomial", "rabenseifner", "pipeline:65536"),
    "allreduce": ("ring", "rabenseifner", "recursive_doubling"),
    "reduce_scatter": ("ring", "recursive_halving", "butterfly"),
    "reduce_scatter_block": ("recursive_halving", "recursive_doubling", "butterfly"),
    "allgather": ("ring", "bruck", "recursive_doubling"),
    "allgatherv": ("ring", "bruck"),
    "gather": ("basic_linear", "binomial"),
    "scatter": ("basic_linear", "binomial"),
    "alltoall": ("pairwise", "linear", "modified_bruck"),
    "alltoallv": ("pairwise", "basic_linear"),
    "scan": ("linear", "recursive_doubling"),
    "exscan": ("linear", "recursive_doubling"),
}

_MPICH: dict[str, tuple[str, ...]] = {
    "barrier": ("smp", "k_dissemination", "recexch"),
    "bcast": (
        "binomial",
        "smp",
        "scatter_recursive_doubling_allgather",
        "scatter_ring_allgather",
        "pipelined_tree",
    ),
    "reduce": ("binomial", "smp", "reduce_scatter_gather"),
    "allreduce": (
        "smp",
        "recursive_doubling",
        "reduce_scatter_allgather",
        "ring",
        "recursive_multiplying",
    ),
    "reduce_scatter": ("pairwise", "recursive_doubling", "recursive_halving"),
    "reduce_scatter_block": ("pairwise", "recursive_doubling", "recursive_halving"),
    "allgather": ("ring", "brucks", "recursive_doubling"),
    "allgatherv": ("ring", "brucks", "recursive_doubling"),
    "gather": ("binomial",),
    "scatter": ("binomial",),
    "alltoall": ("pairwise", "brucks", "scattered"),
    "alltoallv": ("pairwise_sendrecv_replace", "scattered"),
    "exscan": ("recursive_doubling",),
}


def settings(library: str, operation: str) -> list[Setting]:
    """List the settings of a library for an operation, best guess first.

    Parameters
    ----------
    library : str
        ``"openmpi"``, ``"mpich"`` or ``"other"``.
    operation : str
        Name of a collective.

    Returns
    -------
    list of Setting
        The defaults are always among them.

    Raises
    ------
    UsageError
        If the library is not one of the three.
    """
    if library == "openmpi":
        return _openmpi(operation)
    if library == "mpich":
        return _mpich(operation)
    if library == "other":
        return [Setting("defaults")]
    raise UsageError("bench", f"unknown library {library!r}", "choose openmpi, mpich or other")


def launches(library: str, operations: Iterable[str]) -> list[dict[str, str]]:
    """Arrange the settings of several operations in few launches.

    Parameters
    ----------
    library : str
        As in `settings`.
    operations : iterable of str
        Names of collectives.

    Returns
    -------
    list of dict
        The environment of each launch; launch k serves the k-th setting of
        each operation that has so many.
    """
    lists = [settings(library, operation) for operation in operations]
    merged: list[dict[str, str]] = [{} for _ in range(max(map(len, lists), default=0))]
    for several in lists:
        for environment, setting in zip(merged, several, strict=False):
            environment.update(setting.environment)
    return merged


def _openmpi(operation: str) -> list[Setting]:
    """List Open MPI's settings: without HAN first, it loses least time."""
    flat = {"OMPI_MCA_coll": "^han"}
    known = [
        Setting("coll=^han", flat),
        Setting("defaults"),
        Setting(
            "coll=^han btl_sm_eager_limit=65536", {**flat, "OMPI_MCA_btl_sm_eager_limit": "65536"}
        ),
        Setting("coll=^han coll_sm_priority=100", {**flat, "OMPI_MCA_coll_sm_priority": "100"}),
    ]
    for choice in _TUNED.get(operation, ()):
        name, _, segment = choice.partition(":")
        parameter = f"coll_tuned_{operation}_algorithm"
        environment = {
            **flat,
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            f"OMPI_MCA_{parameter}": name,
        }
        label = f"coll=^han {parameter}={name}"
        if segment:
            environment[f"OMPI_MCA_{parameter}_segmentsize"] = segment
            label += f" segmentsize={segment}"
        known.append(Setting(label, environment))
    return known


def _mpich(operation: str) -> list[Setting]:
    """List MPICH's settings: the device's own, then each algorithm."""
    name = operation.upper()
    generic = {f"MPIR_CVAR_{name}_DEVICE_COLLECTIVE": "0"}
    known = [Setting("defaults"), Setting(f"{name}_DEVICE_COLLECTIVE=0", generic)]
    for choice in _MPICH.get(operation, ()):
        variable = f"{name}_INTRA_ALGORITHM"
        environment = {**generic, f"MPIR_CVAR_{variable}": choice}
        known.append(Setting(f"{variable}={choice}", environment))
    return known


FOLDER = "CLOSERANKS_BEST_DIR"
#: How the name of that folder begins.
PREFIX = ".closeranks-best-"
LAUNCH = "CLOSERANKS_BEST_LAUNCH"


@dataclass(frozen=True)
class SettingsKey:
    """Two times are compared only if all of this is equal.

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
class SettingsResult:
    """The library's own time with one setting, and ours beside it.

    Parameters
    ----------
    key : SettingsKey
        The measurement.
    p50_us : float
        Median, microseconds.
    setting : str
        Label of the setting.
    ours_us : float, optional
        Our median in the same launch, in turn with the library's; None where
        calls take so long that launches need not be told apart.
    """

    key: SettingsKey
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
    results : iterable of SettingsResult
        From any number of launches.
    """

    def __init__(self, results: Iterable[SettingsResult]) -> None:
        self._results: dict[SettingsKey, list[SettingsResult]] = {}
        self.settings: dict[str, dict[str, None]] = {}
        for result in results:
            self.settings.setdefault(result.key.name, {})[result.setting] = None
            self._results.setdefault(result.key, []).append(result)

    def fastest(self, key: SettingsKey) -> SettingsResult | None:
        """Return the result of the least time, or None if no launch measured this."""
        return min(self._results.get(key, []), key=lambda one: one.p50_us, default=None)

    def hardest(self, key: SettingsKey, ours_us: float) -> SettingsResult | None:
        """Return the least speed-up; `ours_us` as in `SettingsResult.speedup`."""
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


def write(path: Path, number: int, results: Iterable[SettingsResult]) -> None:
    """Write what one launch measured; local, one rank.

    Parameters
    ----------
    path : Path
        The folder.
    number : int
        Number of the launch.
    results : iterable of SettingsResult
        Its results.
    """
    text = json.dumps([asdict(result) for result in results], indent=1)
    (path / f"launch-{number}.json").write_text(text + "\n")


def read(path: Path) -> list[SettingsResult]:
    """Read what all launches so far measured; local, one rank.

    Parameters
    ----------
    path : Path
        The folder.

    Returns
    -------
    list of SettingsResult
        A launch that failed left no file and is not in it.
    """
    files = sorted(path.glob("launch-*.json"))
    found = [one for file in files for one in json.loads(file.read_text())]
    return [SettingsResult(**{**one, "key": SettingsKey(**one["key"])}) for one in found]
