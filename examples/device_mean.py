"""Average arrays over all ranks where they lie: on GPUs if there are any.

Run with ``closeranks run -n 2 -- examples/device_mean.py``.
"""

from __future__ import annotations

import numpy as np

import closeranks as cr

try:
    import cupy

    xp = cupy if cupy.cuda.is_available() else np
except ImportError:
    xp = np

with cr.init() as comm:
    if xp is not np:  # ranks of a node take its GPUs in turn
        cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
    gradient = xp.full((512, 512), comm.rank, dtype=xp.float32)
    mean = xp.empty_like(gradient)
    comm.Allreduce(gradient, mean, cr.MEAN)  # on the current stream, as xp's own work
    error = float(abs(mean - (comm.size - 1) / 2).max())
    if comm.rank == 0:
        print(f"{xp.__name__} arrays, largest error {error:.1e}")
        print(f"ways of device arrays: {comm.statistics().device or 'none'}")
