"""The settings of an MPI library that ``--vs best`` tries: fixed, printed.

Open MPI's are MCA parameters, MPICH's control variables; both are read from
the environment at MPI_Init, so each setting is a launch of its own.  Launch k
takes the k-th setting of every operation it measures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from closeranks.errors import UsageError


@dataclass(frozen=True)
class Setting:
    """One way to configure the library for one operation.

    Parameters
    ----------
    label : str
        What a table prints.
    environment : dict of str to str
        What MPI_Init must find.
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
