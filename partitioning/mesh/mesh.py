"""A mesh: ranks arranged along named axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast
from zlib import crc32

import numpy as np
import numpy.typing as npt

from closeranks.comms import argument
from closeranks.comms.topology.level_table import MAX_RANKS
from closeranks.comms.topology.topology import Topology
from closeranks.errors import UsageError
from closeranks.partitioning.mesh.mesh_cost import MeshCost, busiest_ranks, priced
from closeranks.partitioning.mesh.rank_order import ranks_by_position
from closeranks.partitioning.mesh.traffic import Traffic, axis_traffic, check_links
from closeranks.partitioning.mesh.volume import Volume, checked_volumes

if TYPE_CHECKING:
    from mpi4py import MPI

#: Ranks of an order that are shown.
_SHOWN: Final = 16


class Mesh:
    """Ranks arranged along named axes.

    A position is a tuple of coordinates, one an axis; its number is row-major,
    the last axis varies fastest, as in NumPy.  The order says which rank stands
    at which position.  Immutable; all but `communicator` and `cart` is local.

    Parameters
    ----------
    axes : mapping of str to int
        Name -> size, outermost first.
    topology : Topology, optional
        The machine; `traffic` and `cost` need it.
    order : None, str or array_like of int, optional
        None: rank = number of the position.  A text of names such as
        "tp-dp-pp": the first name varies fastest [1]_.  Ranks of shape
        ``tuple(sizes)``, or in a row.  ``axes`` begins with the outermost,
        a text with the innermost: ``"tp-dp"`` is no change to ``dp, tp``.

    Attributes
    ----------
    axes : mapping of str to int
        As given, read-only.
    size : int
        Number of ranks, the product of the sizes.
    ranks : ndarray, shape (sizes of the axes), dtype int64
        Rank at each position, read-only.
    topology : Topology or None
        As given.

    Raises
    ------
    UsageError
        If a size is not positive, the topology has another number of ranks,
        or the order is no permutation.

    References
    ----------
    .. [1] Megatron-LM, megatron/core/parallel_state.py, RankGenerator.

    Examples
    --------
    >>> mesh = Mesh({"dp": 2, "tp": 4})
    >>> mesh.coordinates(6), mesh.rank((1, 2)), mesh.group("tp", 6)
    ((1, 2), 6, [4, 5, 6, 7])
    """

    __slots__ = ("_positions", "axes", "ranks", "size", "topology")

    def __init__(
        self, axes: Mapping[str, int], topology: Topology | None = None, order: Any = None
    ) -> None:
        self.axes: Mapping[str, int] = MappingProxyType(_checked_axes("Mesh", axes))
        self.size = prod(self.axes.values())
        if topology is not None:
            check_size("Mesh", self.axes, topology)
        self.topology = topology
        self.ranks: npt.NDArray[np.int64] = ranks_by_position(self.axes, order)
        positions = np.empty(self.size, dtype=np.int64)
        positions[self.ranks.reshape(-1)] = np.arange(self.size)
        self._positions = positions

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.axes.values())

    def position(self, rank: int) -> int:
        """Give the number of a rank's position.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        int
            Row-major, 0..size-1.
        """
        return int(self._positions[argument.whole("Mesh", "rank", rank, below=self.size)])

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Give where a rank stands.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        tuple of int
            One coordinate an axis.

        Raises
        ------
        UsageError
            If there is no such rank.
        """
        return tuple(int(c) for c in np.unravel_index(self.position(rank), self.shape))

    def rank(self, coordinates: Sequence[int]) -> int:
        """Give the rank that stands at a position.

        Parameters
        ----------
        coordinates : sequence of int
            One an axis, each at least 0 and below the axis' size.

        Returns
        -------
        int
            The rank.

        Raises
        ------
        UsageError
            If there is no such position.
        """
        where = _as_tuple(coordinates, len(self.axes))
        for (name, size), at in zip(self.axes.items(), where, strict=True):
            argument.whole("Mesh.rank", f"coordinate {name}", at, below=size)
        return int(self.ranks[where])

    def group(self, axis: str | Sequence[str], rank: int) -> list[int]:
        """Give the ranks that share all coordinates with a rank but those of some axes.

        Parameters
        ----------
        axis : str or sequence of str
            A name or several; of several the last given varies fastest.
        rank : int
            A rank of the mesh.

        Returns
        -------
        list of int
            Ranks by coordinate along the axes, the rank itself included.

        Raises
        ------
        UsageError
            If there is no such axis or rank, or an axis is named twice.
        """
        return self._group("Mesh.group", axis, rank)

    def _group(self, where: str, axis: str | Sequence[str], rank: int) -> list[int]:
        chosen = self._chosen(where, axis)
        index: list[Any] = list(self.coordinates(rank))
        for place in chosen:
            index[place] = slice(None)
        plane = self.ranks[tuple(index)]
        kept = sorted(chosen)
        members: list[int] = plane.transpose([kept.index(p) for p in chosen]).reshape(-1).tolist()
        return members

    def communicator(
        self, comm: MPI.Intracomm, axis: str | Sequence[str] | None = None
    ) -> MPI.Intracomm:
        """Make a communicator of the ranks in the order of the mesh.

        Collective over ``comm``, by its ``Split``: of a closeranks communicator
        it is a closeranks communicator, which a recovery makes anew.

        Parameters
        ----------
        comm : MPI.Intracomm
            Has as many ranks as the mesh.
        axis : str or sequence of str, optional
            The communicator of this rank's `group` along these, numbered as
            the group is.  None: all ranks, numbered by position.

        Returns
        -------
        MPI.Intracomm
            To be freed by the caller.

        Raises
        ------
        UsageError
            On all ranks, if ``comm`` has another number of ranks, or an axis
            is unknown.
        """
        self.check_comm("Mesh.communicator", comm)
        if axis is None:
            color, key = 0, self.position(comm.Get_rank())
        else:
            group = self._group("Mesh.communicator", axis, comm.Get_rank())
            color, key = min(group), group.index(comm.Get_rank())
        return cast("MPI.Intracomm", comm.Split(color, key))

    def cart(
        self, comm: MPI.Intracomm, periods: bool | Sequence[bool] | Mapping[str, bool] = False
    ) -> MPI.Cartcomm:
        """Make MPI's Cartesian communicator whose rank is the position.

        Collective over ``comm``.

        Parameters
        ----------
        comm : MPI.Intracomm
            Has as many ranks as the mesh.
        periods : bool, sequence of bool or mapping of str to bool
            Which axes are rings: all alike, one an axis, or by name (axes left
            out are none).

        Returns
        -------
        MPI.Cartcomm
            Its dimensions are the axes, in order; to be freed by the caller.

        Raises
        ------
        UsageError
            On all ranks, as in `communicator`, or if periods fit no axes.
        """
        rings = self._periods(periods)
        ordered = self.communicator(comm)
        try:
            return ordered.Create_cart(list(self.shape), rings, reorder=False)
        finally:
            ordered.Free()

    def traffic(self, volumes: Mapping[str, Volume]) -> dict[str, int | float]:
        """Give the bytes that the busiest rank sends over each level in a step.

        Parameters
        ----------
        volumes : mapping of str to Volume
            Axis -> what each rank sends along it; axes left out send nothing.

        Returns
        -------
        dict of str to int or float
            Level name -> bytes over its link: the link of the outermost level
            that separates sender and receiver.

        Raises
        ------
        UsageError
            If an axis is unknown, or the mesh has no topology.
        """
        topology = self._machine("Mesh.traffic")
        return busiest_ranks(topology, self._loads(topology, "Mesh.traffic", volumes))

    def cost(self, volumes: Mapping[str, Volume]) -> MeshCost:
        """Price a step.

        Parameters
        ----------
        volumes : mapping of str to Volume
            Axis -> what each rank sends along it; axes left out send nothing.

        Returns
        -------
        MeshCost
            Seconds, and bytes per level.

        Raises
        ------
        UsageError
            If an axis is unknown, or the mesh has no topology.
        TopologyError
            If a link has no known latency or rate.
        """
        topology = self._machine("Mesh.cost")
        check_links("Mesh.cost", topology)
        return priced(topology, self._loads(topology, "Mesh.cost", volumes))

    def draw(self, path: str | Path, axis: str | None = None) -> None:
        """Draw the mesh on the boxes of its machine; local.

        Parameters
        ----------
        path : str or Path
            Ends with ``.svg``, or with ``.png`` where matplotlib is installed.
        axis : str, optional
            Ranks with the same coordinate along it have one colour; the first
            axis if not given.

        Raises
        ------
        UsageError
            If the mesh has no topology, or no such axis.
        """
        from closeranks.partitioning.mesh.mesh_drawing import draw_mesh

        coloured = next(iter(self.axes)) if axis is None else axis
        self._chosen("Mesh.draw", coloured)
        draw_mesh(self, self._machine("Mesh.draw"), coloured, path)

    def check_comm(self, where: str, comm: MPI.Intracomm) -> None:
        """Refuse a communicator with another number of ranks.

        Parameters
        ----------
        where : str
            The call, for the text of an error.
        comm : MPI.Intracomm
            The communicator.

        Raises
        ------
        UsageError
            On all ranks of it.
        """
        if comm.Get_size() != self.size:
            problem = f"{self} has {self.size} ranks, the communicator {comm.Get_size()}"
            raise UsageError(where, problem, "give sizes whose product is the number of ranks")

    def _machine(self, where: str) -> Topology:
        """Give the topology; refuse to do without."""
        if self.topology is None:
            remedy = "give Mesh(axes, topology), of cr.discover() or Topology.regular"
            raise UsageError(where, "the mesh has no topology", remedy)
        return self.topology

    def _loads(
        self, topology: Topology, where: str, volumes: Mapping[str, Volume]
    ) -> list[Traffic]:
        names = list(self.axes)
        return [
            axis_traffic(topology, self.ranks, names.index(axis), volume)
            for axis, volume in checked_volumes(where, volumes, self.axes).items()
            if volume.nbytes and self.axes[axis] > 1
        ]

    def _chosen(self, where: str, axis: str | Sequence[str]) -> list[int]:
        """Give the indices of some axes."""
        names = list(self.axes)
        given: object = axis  # whatever its type says
        if not isinstance(given, Iterable):
            remedy = f"give a name, or several, of {', '.join(names)}"
            raise UsageError(where, f"axis is {argument.shown(axis)}", remedy)
        chosen = [axis] if isinstance(axis, str) else list(axis)
        for name in chosen:
            if name not in names or chosen.count(name) > 1:
                twice = "axis named twice:" if name in names else "unknown axis"
                raise UsageError(where, f"{twice} {argument.shown(name)}",
                                 f"choose from {', '.join(names)}, each once")  # fmt: skip
        return [names.index(name) for name in chosen]

    def _periods(self, periods: bool | Sequence[bool] | Mapping[str, bool]) -> list[bool]:
        """Read which axes are rings."""
        if isinstance(periods, Mapping):
            self._chosen("Mesh.cart", list(periods))
            return [bool(periods.get(name, False)) for name in self.axes]
        if isinstance(periods, (bool, int, np.bool_)):
            return [bool(periods)] * len(self.axes)
        argument.instance(
            "Mesh.cart", "periods", periods, Iterable, "give True, False or one an axis"
        )
        rings = [bool(one) for one in periods]
        if len(rings) != len(self.axes):
            raise UsageError("Mesh.cart", f"{len(rings)} periods for {len(self.axes)} axes",
                             "give one an axis")  # fmt: skip
        return rings

    def __eq__(self, other: object) -> bool:
        """Compare axes, order and topology."""
        if not isinstance(other, Mesh):
            return NotImplemented
        same = tuple(self.axes.items()) == tuple(other.axes.items())
        same = same and np.array_equal(self.ranks, other.ranks)
        return same and self.topology == other.topology

    def __hash__(self) -> int:
        """Hash axes and order."""
        return hash((tuple(self.axes.items()), self.ranks.tobytes()))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.axes.items())
        return f"Mesh({sizes}{self._order_shown()})"

    def _order_shown(self) -> str:
        """Tell an order that is not the default; of a long one the first ranks and a CRC.

        Errors show meshes: two that differ must not look alike.
        """
        order = self.ranks.reshape(-1)
        if np.array_equal(order, np.arange(self.size)):
            return ""
        if self.size <= _SHOWN:
            return f", order={order.tolist()}"
        first = ", ".join(map(str, order[:_SHOWN].tolist()))
        return f", order=[{first}, ...] of CRC {crc32(order.tobytes()):08x}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the mesh was made of."""
        return Mesh, (dict(self.axes), self.topology, np.array(self.ranks))


def _checked_axes(where: str, axes: Any) -> dict[str, int]:
    """Read names and sizes; refuse others."""
    argument.instance(where, "axes", axes, Mapping, 'give name -> size, such as {"dp": 4}')
    found: dict[str, int] = {}
    for name, size in axes.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise UsageError(where, f"an axis is called {argument.shown(name)}",
                             "use a letter, then letters, digits or _")  # fmt: skip
        found[name] = argument.whole(where, f"size of axis {name!r}", size, least=1)
    size = prod(found.values())
    if not found or size > MAX_RANKS:
        raise UsageError(where, f"{len(found)} axes with {size} ranks",
                         f"give at least one axis, and at most {MAX_RANKS} ranks")  # fmt: skip
    return found


def check_size(where: str, axes: Mapping[str, int], topology: Topology) -> None:
    """Refuse axes whose sizes do not make up the ranks of a machine.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    axes : mapping of str to int
        Name -> size.
    topology : Topology
        The machine.

    Raises
    ------
    UsageError
        If the product is another number.
    """
    argument.instance(where, "topology", topology, Topology, "give a Topology, or none")
    if prod(axes.values()) != topology.size:
        sizes = " x ".join(f"{name}={size}" for name, size in axes.items())
        problem = f"{sizes} is {prod(axes.values())}, the topology has {topology.size} ranks"
        raise UsageError(where, problem, "give sizes whose product is the number of ranks")


def _as_tuple(coordinates: Any, count: int) -> tuple[int, ...]:
    """Read coordinates, one an axis."""
    try:
        found = tuple(coordinates)
    except TypeError:
        found = ()
    if len(found) != count:
        raise UsageError("Mesh.rank", f"coordinates are {argument.shown(coordinates)}",
                         f"give {count}, one an axis")  # fmt: skip
    return found
