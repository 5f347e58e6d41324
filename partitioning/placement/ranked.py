"""Placements, and the list of the best."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from closeranks.partitioning.mesh.mesh import Mesh
from closeranks.partitioning.mesh.mesh_cost import MeshCost
from closeranks.partitioning.placement.workload import Workload


class Placement(NamedTuple):
    """A mesh on a machine, and what a step on it costs.

    Attributes
    ----------
    mesh : Mesh
        The axes with the chosen order of ranks, and the topology.
    cost : MeshCost
        The predicted price of a step.
    default : MeshCost
        The price with rank = number of the position.
    exact : bool
        True if it is proved that no order costs less.
    """

    mesh: Mesh
    cost: MeshCost
    default: MeshCost
    exact: bool

    def __str__(self) -> str:
        """Write a line: the mesh, the time of a step, and how sure that is."""
        faster = self.default.seconds / self.cost.seconds if self.cost.seconds else 1.0
        proof = "no order costs less" if self.exact else "the best found"
        return (
            f"{self.mesh}: {self.cost.seconds:.3g} s a step, {faster:.3g} times faster than "
            f"in the order of the ranks ({proof})"
        )


class Shortlist:
    """The cheapest orders of those that were proposed; the default is the first.

    Two orders whose costs agree in every figure count as one.  Of orders of
    equal price the one that was proposed first is kept before the other, so
    the default wins ties.

    Parameters
    ----------
    workload : Workload
        What the orders cost.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._found: dict[Any, tuple[Mesh, MeshCost]] = {}
        self.default = self.propose(None)

    def propose(self, ranks: npt.NDArray[Any] | None) -> MeshCost:
        """Price an order, and note it.

        Parameters
        ----------
        ranks : ndarray of int, or None
            Rank by position; None: rank = position.

        Returns
        -------
        MeshCost
            Its price.
        """
        mesh = self.workload.mesh(ranks)
        cost = self.workload.cost(mesh)
        figures = (
            comparable(cost.seconds),
            tuple(map(comparable, cost.bytes_per_level.values())),
            tuple(map(comparable, cost.group_bytes_per_level.values())),
        )
        self._found.setdefault(figures, (mesh, cost))
        return cost

    def __len__(self) -> int:
        return len(self._found)

    def best(self) -> npt.NDArray[np.int64]:
        """Give the cheapest order, rank by position in a row."""
        return self._sorted()[0][0].ranks.reshape(-1)

    def placements(self, top: int, *, proved: bool) -> list[Placement]:
        """Give the cheapest as placements.

        Parameters
        ----------
        top : int
            At most so many.
        proved : bool
            Whether no order costs less than the best of these.

        Returns
        -------
        list of Placement
            Best first; none costs more than the default.
        """
        chosen = self._sorted()[:top]
        least, most = (comparable(c.seconds) for c in (chosen[0][1], self.default))
        return [
            Placement(mesh, cost, self.default, proved and comparable(cost.seconds) == least)
            for mesh, cost in chosen
            if comparable(cost.seconds) <= most
        ]

    def _sorted(self) -> list[tuple[Mesh, MeshCost]]:
        """Give what was found, best first."""
        return sorted(self._found.values(), key=lambda one: comparable(one[1].seconds))


def comparable(value: float) -> float:
    """Round to twelve digits, so that sums in another order are equal."""
    return float(f"{value:.11e}")
