"""A Fourier transform of a cube cut in pencils: two changes of layout, no all-gather.

Run with ``closeranks run -n 4 -- examples/pencil_fft.py``.

Each rank transforms the axis that it holds whole; then another axis becomes whole.
Parts may be uneven, or empty.
"""

import numpy as np

import closeranks as cr
from closeranks.partitioning import Layout, Mesh, Split, redistribute

SHAPE = (30, 21, 26)

with cr.init() as comm:
    rows = max(d for d in range(1, comm.size + 1) if comm.size % d == 0 and d * d <= comm.size)
    mesh = Mesh({"row": rows, "column": comm.size // rows}, comm.hierarchy)
    pencils = [  # the axis that is whole: 2, then 1, then 0
        Layout(SHAPE, [Split(0), Split(1)], mesh=mesh),
        Layout(SHAPE, [Split(0), Split(2)], mesh=mesh),
        Layout(SHAPE, [Split(1), Split(2)], mesh=mesh),
    ]
    field = np.random.default_rng(7).standard_normal(SHAPE)
    part = np.fft.fft(field[pencils[0].box(comm.rank)], axis=2)
    for before, after, axis in ((0, 1, 1), (1, 2, 0)):
        part = redistribute(comm, part, pencils[before], pencils[after])
        part = np.fft.fft(part, axis=axis)
    right = np.fft.fftn(field)[pencils[2].box(comm.rank)]
    difference = max(comm.allgather(np.abs(part - right).max(initial=0.0)))
    if comm.rank == 0:
        print(f"{mesh}: largest difference from np.fft.fftn {difference:.1e}")
    assert difference < 1e-11
