"""Heat in a box, cut over the ranks as fits the machine; equals the serial solution.

Run with ``closeranks run -n 4 -- examples/heat.py``.

Each step the faces travel while the inside is computed.
"""

import numpy as np

import closeranks as cr
from closeranks.partitioning import Halo, Layout, Split, cartesian

SHAPE, STEPS, RATE = (48, 40, 36), 25, 0.1


def change(u: np.ndarray) -> np.ndarray:
    """Seven-point Laplacian of all cells but the outermost."""
    inner = u[1:-1, 1:-1, 1:-1]
    sides = (
        u[2:, 1:-1, 1:-1], u[:-2, 1:-1, 1:-1], u[1:-1, 2:, 1:-1],
        u[1:-1, :-2, 1:-1], u[1:-1, 1:-1, 2:], u[1:-1, 1:-1, :-2],
    )  # fmt: skip
    return RATE * (sum(sides) - 6 * inner)


def start(shape: tuple[int, ...]) -> np.ndarray:
    """Give the heat at time 0: one hot corner."""
    x, y, z = np.indices(shape)
    return np.exp(-((x / 8) ** 2 + (y / 8) ** 2 + (z / 8) ** 2))


with cr.init() as comm:
    grid = cartesian(SHAPE, comm.hierarchy, halo=1)
    layout = Layout(SHAPE, [Split(axis) for axis in range(3)], mesh=grid.mesh)
    with Halo(comm, layout, 1, corners=False) as halo:
        u = halo.empty(float)
        u[:] = 0.0  # outside of the box it is cold
        mine = halo.interior(u)
        mine[:] = start(SHAPE)[layout.box(comm.rank)]
        for _ in range(STEPS):
            halo.start(u)
            inside = change(mine)  # needs no ghosts
            halo.finish()
            edge = change(u)
            edge[1:-1, 1:-1, 1:-1] = inside
            mine += edge
    whole = np.pad(start(SHAPE), 1)
    for _ in range(STEPS):
        whole[1:-1, 1:-1, 1:-1] += change(whole)
    difference = np.abs(mine - whole[1:-1, 1:-1, 1:-1][layout.box(comm.rank)]).max(initial=0.0)
    difference = max(comm.allgather(difference))
    if comm.rank == 0:
        print(f"{grid.mesh}, a step sends {grid.cost.bytes_per_level}")
        print(f"largest difference from the serial solution {difference:.1e}")
    assert difference < 1e-13
