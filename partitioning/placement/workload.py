"""The messages of one step between positions, and what they cost in an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning.mesh.mesh import Mesh
from closeranks.partitioning.mesh.mesh_cost import MeshCost, priced
from closeranks.partitioning.mesh.traffic import Messages, messages, traffic_of
from closeranks.partitioning.mesh.volume import Volume

Ranks = npt.NDArray[np.int64]


class MeshWorkload:
    """The messages along the axes of a mesh.

    Parameters
    ----------
    axes : mapping of str to int
        Name -> size.
    volumes : mapping of str to Volume
        Axis -> what each rank sends along it; checked.
    topology : Topology
        The machine, with known links.
    """

    def __init__(
        self, axes: Mapping[str, int], volumes: Mapping[str, Volume], topology: Topology
    ) -> None:
        self.axes = dict(axes)
        self.volumes = volumes
        self.topology = topology
        self.shape = tuple(self.axes.values())

    @property
    def sending(self) -> dict[int, Volume]:
        """Index of each axis that sends -> its volume."""
        names = list(self.axes)
        return {
            names.index(axis): volume
            for axis, volume in self.volumes.items()
            if volume.nbytes and self.axes[axis] > 1
        }

    def mesh(self, ranks: npt.NDArray[Any] | None) -> Mesh:
        """Give the mesh of an order; None: rank = position."""
        return Mesh(self.axes, self.topology, ranks)

    def cost(self, mesh: Mesh) -> MeshCost:
        """Price the step on a mesh."""
        return mesh.cost(self.volumes)

    def count(self) -> int:
        """Give how many messages there are."""
        sizes = {axis: self.shape[axis] for axis in self.sending}
        each = {"ring": 1, "line": 2, "torus": 2}
        return self.topology.size * sum(
            each.get(volume.pattern, sizes[axis] - 1) for axis, volume in self.sending.items()
        )

    def messages(self) -> list[Messages]:
        """Give the messages between positions, for each axis that sends."""
        return [messages(self.shape, axis, volume) for axis, volume in self.sending.items()]


class GraphWorkload:
    """The messages of any pairs of positions, all at once.

    Parameters
    ----------
    sent : Messages
        Between positions, none to itself, of at least one byte or part of it.
    topology : Topology
        The machine, with known links.
    """

    def __init__(self, sent: Messages, topology: Topology) -> None:
        self.sent = sent
        self.topology = topology
        self.axes = {"rank": topology.size}
        self.shape = (topology.size,)

    def mesh(self, ranks: npt.NDArray[Any] | None) -> Mesh:
        """Give the mesh of an order; None: rank = position."""
        return Mesh(self.axes, self.topology, ranks)

    def cost(self, mesh: Mesh) -> MeshCost:
        """Price the step on a mesh."""
        order = mesh.ranks.reshape(-1)
        sources, targets, nbytes = self.sent
        moved = Messages(order[sources], order[targets], nbytes)
        axes = [traffic_of(self.topology, moved)] if nbytes.size else []
        return priced(self.topology, axes)

    def count(self) -> int:
        """Give how many messages there are."""
        return self.sent.nbytes.size

    def messages(self) -> list[Messages]:
        """Give the messages between positions."""
        return [self.sent] if self.sent.nbytes.size else []


Workload = MeshWorkload | GraphWorkload


def matrix(sent: Sequence[Messages], size: int) -> npt.NDArray[np.float64]:
    """Add messages up to a matrix of bytes from position to position.

    Parameters
    ----------
    sent : sequence of Messages
        Between positions.
    size : int
        Number of positions.

    Returns
    -------
    ndarray, shape (size, size), dtype float64
        Sender by row.
    """
    total = np.zeros(size * size)
    for sources, targets, nbytes in sent:
        total += np.bincount(sources * size + targets, nbytes, size * size)
    return total.reshape(size, size)
