"""The request, and the ranks that it runs on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from closeranks.jobs.bench.measuring import best_settings
from closeranks.jobs.bench.measuring.best_settings import Best
from closeranks.jobs.bench.measuring.network import Wire, wire
from closeranks.jobs.bench.measuring.timing import Effort
from closeranks.jobs.launch import mpi_library as library
from closeranks.jobs.launch import target

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.communicator.communicator import Communicator


Row = dict[str, Any]
Write = Callable[[str], None]


@dataclass(frozen=True)
class BenchRequest:
    """The command line of ``closeranks bench``, checked.

    Parameters
    ----------
    names : tuple of str
        Benchmarks, in order.
    sizes : tuple of int
        Bytes.
    own_sizes : mapping of str to tuple of int
        Bytes of benchmarks that have other sizes, by name.
    own : mapping of str to any
        Values of the options that belong to single benchmarks, by name in Python.
    algorithms : tuple of str
        Names that ``algorithm=`` takes.
    dtype, op : str
        Names in `collective_facts.DTYPES` and `collective_facts.OPS`.
    effort : Effort
        Iterations, warm-up, budget.
    check, counters : bool
        Whether results are validated, and NICs read.
    native, best, copy : bool
        Sides of the comparison.
    empty : bool
        Whether buffers are arrays of ``comm.empty``.
    persistent : bool
        Whether operations are persistent ones, ours and the library's.
    plain : bool
        Whether persistent ones are compared with the library's blocking call too.
    json, draw : Path, optional
        Where rows and chart go.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    own_sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    algorithms: tuple[str, ...] = ("auto",)
    dtype: str = "float32"
    op: str = "sum"
    effort: Effort = field(default_factory=Effort)
    check: bool = True
    counters: bool = False
    native: bool = False
    best: bool = False
    copy: bool = False
    empty: bool = False
    persistent: bool = False
    plain: bool = False
    json: Path | None = None
    draw: Path | None = None

    def sizes_of(self, name: str) -> tuple[int, ...]:
        """Give the sizes of a benchmark, in bytes."""
        return self.own_sizes.get(name, self.sizes)


@dataclass(frozen=True, eq=False)
class Session:
    """A request on the ranks of a job.

    Parameters
    ----------
    request : BenchRequest
        The command line.
    comm : Communicator
        The ranks.
    plain : MPI.Intracomm
        The same ranks through mpi4py's own methods.
    library : str
        First line of what the MPI library says of itself.
    per_node : tuple of int
        Ranks of each node.
    best : Best
        Results of the separate launches.
    wire : Wire, optional
        The lab's network.
    """

    request: BenchRequest
    comm: Communicator
    plain: MPI.Intracomm
    library: str
    per_node: tuple[int, ...]
    best: Best
    wire: Wire | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return sum(self.per_node)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.per_node)

    @property
    def kind(self) -> str:
        """Which library it is: openmpi, mpich or other."""
        return library.parse(self.library).kind

    def describe(self) -> list[str]:
        """Say where this runs, in lines without a comment sign."""
        import closeranks

        sizes = sorted(set(self.per_node), reverse=True)
        each = f"x {sizes[0]}" if len(sizes) == 1 else f"of {_listed(self.per_node)}"
        elements = f"{self.request.dtype}, {self.request.op}"
        made = "comm.empty" if self.request.empty else "NumPy"
        calls = ", persistent" if self.request.persistent else ""
        return [
            f"closeranks bench {closeranks.__version__}",
            str(library.parse(self.library)),
            f"{self.ranks} ranks, {self.nodes} nodes {each}, {made} buffers, {elements}{calls}",
            *self.warn(),
        ]

    def warn(self) -> list[str]:
        """Say, in lines like those of `describe`, why figures may mislead."""
        if self.ranks > 1:
            return []
        return ["one rank: nothing is sent; start it with closeranks run -n 2 -- closeranks bench"]


def ranks_per_node(comm: Communicator) -> tuple[int, ...]:
    """Count the ranks of each node of a communicator; local.

    Parameters
    ----------
    comm : Communicator
        The communicator.

    Returns
    -------
    tuple of int
        In order of the nodes' numbers.
    """
    topology = comm.hierarchy
    if "node" not in topology.levels:
        return (topology.size,)
    row = topology.groups[topology.levels.index("node")]
    return tuple(int(count) for count in np.bincount(row))


def open_session(request: BenchRequest, comm: Communicator) -> Session:
    """Find out where a request runs; collective.

    Parameters
    ----------
    request : BenchRequest
        The command line.
    comm : Communicator
        The ranks.

    Returns
    -------
    Session
        The same on every rank; one that joins later asks nobody.
    """
    from mpi4py import MPI

    plain = MPI.Intracomm(comm)
    folder = best_settings.folder()
    known = best_settings.read(folder) if folder is not None and plain.Get_rank() == 0 else []
    return Session(
        request=request,
        comm=comm,
        plain=plain,
        library=MPI.Get_library_version().splitlines()[0].strip(" \0"),
        per_node=ranks_per_node(comm),
        best=Best([] if comm.joined else plain.bcast(known)),
        wire=wire(),
    )


def write_rows(request: BenchRequest, rows: Sequence[Row]) -> None:
    """Write rows as JSON, if that was asked for; local, one rank.

    Parameters
    ----------
    request : BenchRequest
        Names the file.
    rows : sequence of dict
        All rows so far: the file is written anew.
    """
    if request.json is not None:
        target.write("bench", request.json, json.dumps(list(rows), indent=1) + "\n")


def writer(comm: MPI.Intracomm) -> Write:
    """Return a function that writes a line on rank 0 and nothing elsewhere.

    Parameters
    ----------
    comm : MPI.Intracomm
        All ranks.

    Returns
    -------
    callable
        Takes one line.
    """
    return click.echo if comm.Get_rank() == 0 else lambda _line: None


def _listed(per_node: tuple[int, ...]) -> str:
    """List a few numbers, or say how they range."""
    if len(per_node) <= 8:
        return ",".join(map(str, per_node))
    return f"{min(per_node)} to {max(per_node)}"
