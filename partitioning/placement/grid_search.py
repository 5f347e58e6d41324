"""The grid of processes for an array, and the order of the ranks on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final

from closeranks.comms import argument
from closeranks.comms.topology.topology import Topology
from closeranks.errors import UsageError
from closeranks.partitioning.mesh.traffic import check_links, rate
from closeranks.partitioning.mesh.volume import Volume
from closeranks.partitioning.placement.exhaustive import few_orders
from closeranks.partitioning.placement.machine_tiers import (
    MachineTier,
    is_regular,
    used_levels,
)
from closeranks.partitioning.placement.mesh_search import search_mesh
from closeranks.partitioning.placement.near_tilings import near_tiers
from closeranks.partitioning.placement.ranked import Placement, comparable
from closeranks.partitioning.placement.tilings import TiledCost, best_tilings, factor_rows, row_cost
from closeranks.partitioning.placement.workload import MeshWorkload

#: Grids that are priced, those with the least bytes of each rank.
_MOST_GRIDS: Final = 4096
#: Grids that are searched in full where tilings do not tell enough.
_SEARCHED: Final = 3
_MOST_AXES: Final = 16

Grid = tuple[int, ...]


def cartesian(
    shape: Sequence[int],
    topology: Topology,
    *,
    halo: int | Sequence[int] = 1,
    periodic: bool | Sequence[bool] = False,
    itemsize: int = 8,
    dims: Sequence[int | None] | None = None,
) -> Placement:
    """Find the grid of processes, and the order of ranks, with the cheapest halos.

    Every grid whose sizes multiply to the number of ranks is a candidate, as
    `place` would place it.  If some grids leave no rank without elements, only
    these are.  ``MPI_Dims_create`` knows neither the array nor the machine,
    and ``MPI_Cart_create`` keeps the order in the libraries of today.
    Local and pure; equal arguments give equal grids on every rank.

    Parameters
    ----------
    shape : sequence of int
        Of the global array.
    topology : Topology
        The machine, with known links.
    halo : int or sequence of int
        Planes of a neighbour that a rank needs, for all axes or one an axis.
    periodic : bool or sequence of bool
        Which axes are rings, all alike or one an axis.
    itemsize : int
        Bytes of an element.
    dims : sequence of int or None, optional
        As for ``MPI_Dims_create``: sizes of the grid, 0 or None where it is free.

    Returns
    -------
    Placement
        A mesh of axes d0, d1, ...; ``default`` is the cost of the same grid with
        rank = number of the position.  A face along axis k has halo_k planes of
        the other axes' largest parts, and each rank sends it to each neighbour.

    Raises
    ------
    UsageError
        If a size, a width or a number is out of range, there is not one an
        axis, or no grid has the given dims.
    TopologyError
        If a link has no known latency or rate; it names the level.

    Examples
    --------
    >>> found = cartesian((512, 8, 512), Topology.regular(node=2, rank=2))
    >>> dict(found.mesh.axes), found.cost.bytes_per_level["node"]
    ({'d0': 4, 'd1': 1, 'd2': 1}, 32768)
    """
    where = "cartesian"
    argument.instance(where, "topology", topology, Topology, "give a Topology")
    sizes = _whole_numbers("shape", shape, None, least=1)
    widths = _whole_numbers("halo", halo, len(sizes), least=0)
    rings = _flags(periodic, len(sizes))
    nbytes = argument.whole(where, "itemsize", itemsize, least=1)
    grids = _grids(sizes, _fixed(dims, len(sizes)), topology.size)
    check_links(where, topology)
    return _best(_Stencil(sizes, widths, rings, nbytes), grids, topology)


def face_bytes(
    shape: Sequence[int], grid: Sequence[int], halo: Sequence[int], itemsize: int
) -> list[int]:
    """Give the bytes of the largest face along each axis of a process grid.

    Parameters
    ----------
    shape, grid, halo : sequence of int
        Lengths of the array, parts, and planes an axis.
    itemsize : int
        Bytes of an element.

    Returns
    -------
    list of int
        An axis k each: halo_k times the other axes' ceil(n / p), in bytes.
    """
    part = [-(-n // p) for n, p in zip(shape, grid, strict=True)]
    return [
        planes * prod(part[:axis] + part[axis + 1 :]) * itemsize for axis, planes in enumerate(halo)
    ]


class _Stencil:
    """An array whose ranks exchange faces.

    Parameters
    ----------
    shape, halo : sequence of int
        Of the array; planes an axis.
    periodic : sequence of bool
        Which axes are rings.
    itemsize : int
        Bytes of an element.
    """

    def __init__(
        self, shape: Sequence[int], halo: Sequence[int], periodic: Sequence[bool], itemsize: int
    ) -> None:
        self.shape, self.halo, self.periodic, self.itemsize = shape, halo, periodic, itemsize
        self._rows: dict[tuple[str, int], list[TiledCost]] = {}

    def volumes(self, grid: Grid) -> dict[int, Volume]:
        """Give what is sent along each axis of a grid."""
        faces = face_bytes(self.shape, grid, self.halo, self.itemsize)
        return {
            axis: Volume(nbytes, "torus" if self.periodic[axis] else "line")
            for axis, nbytes in enumerate(faces)
        }

    def sending(self, grid: Grid) -> dict[int, Volume]:
        """Give the volumes of the axes that send."""
        return {k: v for k, v in self.volumes(grid).items() if v.nbytes and grid[k] > 1}

    def workload(self, grid: Grid, topology: Topology) -> MeshWorkload:
        """Give the messages of a grid."""
        axes = {f"d{axis}": size for axis, size in enumerate(grid)}
        volumes = {f"d{axis}": volume for axis, volume in self.volumes(grid).items()}
        return MeshWorkload(axes, volumes, topology)

    def busiest(self, grid: Grid) -> list[tuple[int, float]]:
        """Give messages and bytes of the busiest rank, for each axis that sends."""
        found = []
        for axis, volume in self.sending(grid).items():
            count = 1 if volume.pattern == "line" and grid[axis] == 2 else 2
            found.append((count, count * float(volume.nbytes)))
        return found

    def bound(self, grid: Grid, tiers: Sequence[MachineTier]) -> float:
        """Give what no tiling of a grid undercuts: each axis by itself, as it likes best."""
        total = 0.0
        for axis, volume in self.sending(grid).items():
            key = volume.pattern, grid[axis]
            if key not in self._rows:
                unit = Volume(1, volume.pattern)
                arities = [tier.arity for tier in tiers]
                rows = factor_rows(grid[axis], arities)
                self._rows[key] = [row_cost(unit, grid[axis], row, tiers) for row in rows]
            total += min(
                volume.nbytes * max(one.per_tier) + one.latency_s for one in self._rows[key]
            )
        return total


def _best(stencil: _Stencil, grids: list[Grid], topology: Topology) -> Placement:
    """Give the cheapest placement of all grids."""
    if len(grids) > _MOST_GRIDS:
        grids = sorted(grids, key=lambda g: sum(nbytes for _, nbytes in stencil.busiest(g)))
        grids = grids[:_MOST_GRIDS]
    if few_orders(topology) is not None:
        return _best_of_all(stencil, grids, topology)
    tiers = near_tiers(topology)
    bounds = {grid: stencil.bound(grid, tiers) for grid in grids}
    prices: dict[Grid, float] = {}
    wanted = 1 if is_regular(topology) and not topology.exceptions else _SEARCHED
    for grid in sorted(grids, key=bounds.__getitem__):
        least = sorted(prices.values())[:wanted]
        if len(least) == wanted and bounds[grid] >= least[-1]:
            break
        ((cost, _),) = best_tilings(grid, stencil.sending(grid), tiers, 1)
        prices[grid] = cost.seconds
    loads = [
        stencil.workload(grid, topology) for grid in sorted(prices, key=prices.__getitem__)[:wanted]
    ]
    if wanted > 1:
        guesses = [search_mesh(load, 1, quick=True)[0].cost.seconds for load in loads]
        loads = [loads[guesses.index(min(guesses))]]
    return search_mesh(loads[0], 1)[0]._replace(exact=False)


def _best_of_all(stencil: _Stencil, grids: list[Grid], topology: Topology) -> Placement:
    """Search each grid through that can still win; the first of equal ones wins."""
    floors = {grid: _floor(stencil, grid, topology) for grid in grids}
    found: list[Placement] = []
    for grid in sorted(grids, key=floors.__getitem__):
        if found and floors[grid] >= min(one.cost.seconds for one in found):
            break
        found += search_mesh(stencil.workload(grid, topology), 1)
    return min(found, key=lambda one: comparable(one.cost.seconds))


def _floor(stencil: _Stencil, grid: Grid, topology: Topology) -> float:
    """Give what no order of a grid undercuts: the link of the busiest rank alone."""
    if topology.size == 1:
        return 0.0
    links = [topology.links[topology.levels[level]] for level in used_levels(topology)]
    least = min(link.latency_s or 0.0 for link in [*links, *topology.exceptions.values()])
    slow = 1.0 / rate(topology, topology.levels[-1])
    return sum(nbytes * slow + n * least for n, nbytes in stencil.busiest(grid))


def _grids(shape: Sequence[int], fixed: Sequence[int], size: int) -> list[Grid]:
    """Give the grids of a number of ranks, larger first sizes first."""
    left = prod(one for one in fixed if one)
    if size % left or (all(fixed) and size != left):
        raise UsageError("cartesian", f"dims {tuple(fixed)} for {size} ranks",
                         "give sizes whose product divides the number of ranks")  # fmt: skip
    grids = list(_products(size // left, fixed))
    full = [g for g in grids if all(p <= n for p, n in zip(g, shape, strict=True))]
    return full or grids


def _products(size: int, fixed: Sequence[int]) -> Iterator[Grid]:
    """Give all ways to fill the zeros of a grid with sizes of a given product."""
    if not fixed:
        if size == 1:
            yield ()
        return
    if fixed[0]:
        choices = [(fixed[0], size)]
    elif any(not one for one in fixed[1:]):
        choices = [(d, size // d) for d in range(size, 0, -1) if size % d == 0]
    else:
        choices = [(size, 1)]
    for one, rest in choices:
        yield from ((one, *inner) for inner in _products(rest, fixed[1:]))


def _whole_numbers(name: str, value: Any, count: int | None, *, least: int) -> list[int]:
    """Read numbers, one an axis; where the count is known, a single one for all."""
    if count is not None and not isinstance(value, (str, bytes)) and hasattr(value, "__index__"):
        return [argument.whole("cartesian", name, value, least=least)] * count
    found = _listed(name, value, count)
    return [argument.whole("cartesian", f"{name}[{k}]", one, least=least)
            for k, one in enumerate(found)]  # fmt: skip


def _flags(value: Any, count: int) -> list[bool]:
    """Read which axes are rings."""
    if not hasattr(value, "__len__"):
        return [bool(value)] * count
    return [bool(one) for one in _listed("periodic", value, count)]


def _fixed(dims: Any, count: int) -> list[int]:
    """Read the sizes of a grid that are given, 0 for others."""
    if dims is None:
        return [0] * count
    given = [0 if one is None else one for one in _listed("dims", dims, count)]
    return _whole_numbers("dims", given, count, least=0)


def _listed(name: str, value: Any, count: int | None) -> list[Any]:
    """Read a sequence of a given length, or of any that arrays have."""
    try:
        found = [] if isinstance(value, (str, bytes)) else list(value)
    except TypeError:
        found = []
    if not 1 <= len(found) <= _MOST_AXES or len(found) != (count or len(found)):
        wanted = f"{count}, one an axis" if count else f"1 to {_MOST_AXES} sizes"
        raise UsageError("cartesian", f"{name} is {argument.shown(value)}", f"give {wanted}")
    return found
