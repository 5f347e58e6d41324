"""Four ranks save an array in one layout; three, six and one restore it in others.

The program of `test_checkpointed_layouts`; six ranks run it.
"""

from __future__ import annotations

import sys

import numpy as np

import closeranks as cr
from closeranks.checkpoint import Checkpointer, Shard
from closeranks.partitioning import Broadcast, Layout, Mesh, Split

SHAPE = (13, 7)
WHOLE = np.random.default_rng(3).standard_normal(SHAPE)
GRID = Mesh({"a": 3, "b": 2}, order=[4, 0, 2, 5, 1, 3])
SAVED = Layout(SHAPE, [Split(0), Split(1)], mesh=Mesh({"a": 2, "b": 2}, order="a-b"))
RESTORED = (
    Layout(SHAPE, [Split(1)], mesh=Mesh({"a": 3})),
    Layout(SHAPE, [Split(1), Split(0)], mesh=GRID),
    Layout(SHAPE, [Split(0), Split(0)], mesh=GRID, cuts={0: [0, 0, 5, 5, 6, 12, 13]}),
    Layout(SHAPE, [Broadcast(), Split(0)], mesh=GRID),
    Layout(SHAPE, [Broadcast()], mesh=Mesh({"a": 1})),
)


def part(layout: Layout, rank: int, array: np.ndarray) -> Shard:
    """Give the part of a rank as a checkpoint takes it."""
    return Shard(array, layout.global_shape, layout.offset(rank))


with cr.init() as world:
    wrong = 0
    for layout in (SAVED, *RESTORED):
        some = world.Split(int(world.rank < layout.mesh.size), world.rank)
        if world.rank < layout.mesh.size:
            rank = some.rank
            with Checkpointer(some, name=sys.argv[1]) as keeper:
                if layout is SAVED:
                    mine = np.ascontiguousarray(WHOLE[layout.box(rank)])
                    keeper.save(1, {"u": part(layout, rank, mine)}).committed.wait()
                else:
                    room = np.zeros(layout.local_shape(rank))
                    found = keeper.restore(into={"u": part(layout, rank, room)})
                    assert found is not None
                    assert found[0] == 1
                    wrong += int(np.count_nonzero(room != WHOLE[layout.box(rank)]))
                keeper.close(keep=layout is not RESTORED[-1])
        some.Free()
    wrong = world.allreduce(wrong)
    if world.rank == 0:
        sys.stdout.write(f"{len(RESTORED)} layouts, {wrong} numbers wrong\n")
