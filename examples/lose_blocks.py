"""Lose two of six blocks, and have them back: an erasure code, without MPI.

python examples/lose_blocks.py
"""

from __future__ import annotations

import numpy as np

from closeranks.checkpoint import Code
from closeranks.checkpoint.placement.erasure_groups import protect
from closeranks.comms.topology.topology import Topology

rng = np.random.default_rng(0)
code = Code(data=4, parity=2)
state = rng.integers(0, 256, (4, 1 << 20), dtype=np.uint8)  # of four nodes, a mebibyte each
blocks = np.concatenate([state, code.encode(state)])

present = np.array([True, False, True, False, True, True])
blocks[~present] = 0  # two nodes are gone
rebuilt = code.reconstruct(blocks, present)
print(f"{code}: blocks {np.flatnonzero(~present).tolist()} lost,",
      f"{np.count_nonzero(rebuilt[:4] != state)} bytes wrong")  # fmt: skip

# Which nodes of a cluster would protect each other: 4 switches of 6 nodes of 8 ranks.
print(protect(Topology.regular(switch=4, node=6, rank=8), parity=2, group=8))
