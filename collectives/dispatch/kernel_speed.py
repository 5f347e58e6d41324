"""How fast kernels in node memory are beside the library, measured at init."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
from mpi4py import MPI

from closeranks.collectives.arguments import native_handover
from closeranks.collectives.fastpath.shm_call import ShmCall, is_near
from closeranks.collectives.fastpath.shortcut import class_of_call, is_possible
from closeranks.collectives.selection.pricing import KernelShares

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service

#: Sizes of the all-reduces that are timed, bytes, and how many calls of each in a row.
_SIZES: Final = ((8, 16), (16384, 8), (1 << 20, 2))
#: How often that is repeated; the fastest counts.
_REPEATS: Final = 3


def measure(service: Service) -> KernelShares | None:
    """Time a few all-reduces of the library and of the kernel.

    Collective over the ranks of the service; some milliseconds on one node.

    Parameters
    ----------
    service : Service
        Of a communicator with an open world.

    Returns
    -------
    KernelShares or None
        The same on every rank; None where there is more than one node, or a rank
        without compiled code.
    """
    world = service.world
    if not 1 < world.size == world.node.size:
        return None
    plain = service.careful
    is_ready = is_possible() and world.kernels
    if native_handover.agreed_max(plain, [float(not is_ready)])[0]:
        return None
    taken_s: list[float] = []
    for nbytes, calls in _SIZES:
        x, y = np.ones(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32)
        demand = service.arguments.read("allreduce", "", "auto", (x, y, MPI.SUM))
        if not is_near(world, demand):
            return None  # the same everywhere
        kernel = service.shortcuts.quick("allreduce", class_of_call(demand), ShmCall(world, demand))
        library = MPI.Intracomm.Allreduce.__get__(service.plain)
        taken_s += [_fastest_s(call, (x, y), calls) for call in (kernel, library)]
    kernel_s, native_s = np.reshape(native_handover.agreed_max(plain, taken_s), (-1, 2)).T
    shares = (kernel_s / np.maximum(native_s, 1e-9)).tolist()
    return KernelShares(tuple(nbytes for nbytes, _ in _SIZES), tuple(shares))


def _fastest_s(call: Callable[..., object], buffers: tuple[object, ...], calls: int) -> float:
    """Time a call, in a row of some; the first row warms up."""
    best = float("inf")
    for repeat in range(_REPEATS + 1):
        began = time.perf_counter()
        for _ in range(calls):
            call(*buffers)
        if repeat:
            best = min(best, time.perf_counter() - began)
    return best / calls
