"""Steps of meshes in the order of the ranks, and in better orders, on emulated sites.

    closeranks lab --nodes 4 --per-node 2 --sites 2 --rate 200mbit --site-rate 50mbit \
        -- docs/limits/mesh_orders.py

Every axis of a mesh sends its volume by plain ``Isend`` and ``Irecv`` between the ranks of
``Mesh.group``; axes follow each other.  The orders of a mesh take turns in one launch.  Rank 0
prints the median over the rounds of the slowest rank, and the prediction of ``Mesh.cost``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from mpi4py import MPI

import closeranks as cr
from closeranks.partitioning import Mesh, Volume, place

#: What the emulated wires carry, measured: bytes of messages a second.
SITE, NODE, RANK = cr.Link(100e-6, 5.96e6), cr.Link(60e-6, 23.4e6), cr.Link(1e-6, 5e9)
LINKS = {"site": SITE, "node": NODE, "rank": RANK}
CASES = {
    "i": ({"a": 2, "b": 2, "c": 2},
          {"a": Volume(4e6, "ring"), "b": Volume(1e6, "ring"), "c": Volume(64e3, "line")}),
    "ii": ({"a": 2, "b": 4}, {"a": Volume(4e6, "all"), "b": Volume(256e3, "ring")}),
    "iii": ({"a": 4, "b": 2}, {"a": Volume(2e6, "ring"), "b": Volume(256e3, "ring")}),
}  # fmt: skip
#: Orders of case i, from the best to the order of the ranks.
ORDERS = ("04261537", "07162435", "02461357", "03247156", "01234567")


def peers(mesh: Mesh, axis: str, volume: Volume, rank: int) -> tuple[list[int], list[int], int]:
    """Name the ranks that a rank sends to and receives from, and the bytes of a message."""
    group = mesh.group(axis, rank)
    n, at = len(group), group.index(rank)
    steps = {"ring": [1], "line": [1, -1], "torus": [1, -1], "all": list(range(1, n))}
    inside = volume.pattern == "line"
    to = [at + k for k in steps[volume.pattern]]
    came = [at - k for k in steps[volume.pattern]]
    nbytes = int(volume.nbytes / (n - 1)) if volume.pattern == "all" else int(volume.nbytes)
    kept = [[group[k % n] for k in some if not inside or 0 <= k < n] for some in (to, came)]
    return kept[0], kept[1], nbytes


def step(comm: MPI.Intracomm, mesh: Mesh, volumes: dict[str, Volume], room: np.ndarray) -> float:
    """Send the volumes of all axes; seconds of the slowest rank."""
    comm.Barrier()
    began = time.perf_counter()
    for axis, volume in volumes.items():
        to, came, nbytes = peers(mesh, axis, volume, comm.rank)
        requests = [
            comm.Irecv(room[k, :nbytes], peer, 1) for k, peer in enumerate(came, len(to))
        ] + [comm.Isend(room[k, :nbytes], peer, 1) for k, peer in enumerate(to)]
        MPI.Request.Waitall(requests)
    return comm.allreduce(time.perf_counter() - began, MPI.MAX)


def main() -> None:
    """Time all orders of all cases in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write rows here")
    given = parser.parse_args()
    comm = MPI.COMM_WORLD.Dup()
    machine = cr.discover(comm).with_links(LINKS)
    if machine.levels != ("site", "node", "rank") or comm.size != 8:
        sys.exit("start it in the lab of the docstring: two sites of two nodes of two ranks")
    room = np.zeros((14, 4_000_000), np.uint8)
    rows = []
    for case, (axes, volumes) in CASES.items():
        orders = {"chosen": place(volumes, machine, axes=axes)[0].mesh.ranks.reshape(-1).tolist()}
        if case == "i":
            orders |= {text: [int(digit) for digit in text] for text in ORDERS}
        orders["default"] = list(range(8))
        meshes = {name: Mesh(axes, machine, order) for name, order in orders.items()}
        times: dict[str, list[float]] = {name: [] for name in meshes}
        for turn in range(given.rounds):
            names = list(meshes)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                times[name].append(step(comm, meshes[name], volumes, room))
        for name, mesh in meshes.items():
            rows.append({"case": case, "order": name, "measured_s": median(times[name]),
                         "predicted_s": mesh.cost(volumes).seconds})  # fmt: skip
        if comm.rank == 0:
            gain = median(times["default"]) / median(times["chosen"])
            lines = [
                f"{case:>4} {row['order']:>9}  measured {1e3 * row['measured_s']:7.1f} ms  "
                f"predicted {1e3 * row['predicted_s']:7.1f} ms\n"
                for row in rows[-len(meshes) :]
            ]
            sys.stdout.write("".join(lines) + f"{case:>4} default / chosen {gain:.1f}\n")
            sys.stdout.flush()
    if comm.rank == 0 and given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
