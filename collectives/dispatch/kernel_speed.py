"""How fast kernels in node memory are beside the library, on buffers of our own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from closeranks.collectives.arguments import native_handover
from closeranks.collectives.engine.leaves import is_kernel_stored, kernel_name
from closeranks.collectives.fastpath.shm_call import ShmCall, is_near
from closeranks.collectives.fastpath.shortcut import class_of_call, is_possible
from closeranks.collectives.plans.collective import REDUCING
from closeranks.collectives.reduction.compiled_ops import is_sum_stored
from closeranks.collectives.selection.pricing import KernelShares
from closeranks.comms.exit import signal_handlers
from closeranks.errors import Unavailable

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service

#: Sizes that are timed, bytes of a vector or a block, and how many calls of each in a row.
_SIZES: Final = ((8, 16), (16384, 4), (1 << 18, 1))
#: How often that is repeated; the fastest counts.
_REPEATS: Final = 3
_TYPE: Final = np.dtype(np.float32)


def _ones(nbytes: int) -> np.ndarray[Any, Any]:
    return np.ones(nbytes // _TYPE.itemsize, _TYPE)


#: Arguments of a call, from its bytes and the number of ranks.
_ARGUMENTS: Final[dict[str, Callable[[int, int], tuple[Any, ...]]]] = {
    "allgather": lambda n, size: (_ones(n), _ones(n * size)),
    "allreduce": lambda n, _: (_ones(n), _ones(n), MPI.SUM),
    "alltoall": lambda n, size: (_ones(n * size), _ones(n * size)),
    "barrier": lambda _n, _: (),
    "bcast": lambda n, _: (_ones(n), 0),
    "reduce": lambda n, _: (_ones(n), _ones(n), MPI.SUM, 0),
    "reduce_scatter_block": lambda n, size: (_ones(n * size), _ones(n), MPI.SUM),
}


def measure(service: Service, operation: str, *, may_compile: bool) -> KernelShares | None:
    """Time a few calls of the library and of the kernel of an operation, in turn.

    Collective over the ranks of the service; some milliseconds on one node.

    Parameters
    ----------
    service : Service
        Of a communicator with an open world.
    operation : str
        For instance ``"allreduce"``.
    may_compile : bool
        Whether kernels are compiled that no disk holds.

    Returns
    -------
    KernelShares or None
        The same on every rank; None where there is more than one node, or no
        kernel, or a rank without compiled code.
    """
    signal_handlers.defer_handlers()  # all ranks are in it
    world = service.world
    if operation not in _ARGUMENTS or not 1 < world.size == world.node.size:
        return None
    sizes = _SIZES[:1] if operation == "barrier" else _SIZES
    is_ready = is_possible() and world.kernels and (may_compile or _is_stored(operation))
    if native_handover.agreed_max(service.careful, [float(not is_ready)])[0]:
        return None
    taken_s: list[float] = []
    for nbytes, calls in sizes:
        arguments = _ARGUMENTS[operation](nbytes, world.size)
        demand = service.arguments.read(operation, "", "auto", arguments)
        try:
            if not is_near(world, demand):
                return None  # the same everywhere
            way = ShmCall(world, demand)
        except Unavailable:
            return None  # as on all ranks; a call that needs the memory says so
        kernel = service.shortcuts.quick(operation, class_of_call(demand), way)
        library = getattr(MPI.Intracomm, operation.capitalize()).__get__(service.plain)
        taken_s.append(_fastest_s(kernel, arguments, calls))
        with service.family.notices.inside:
            taken_s.append(_fastest_s(library, arguments, calls))
    kernel_s, native_s = np.reshape(native_handover.agreed_max(service.careful, taken_s), (-1, 2)).T
    shares = (kernel_s / np.maximum(native_s, 1e-9)).tolist()
    return KernelShares(tuple(nbytes for nbytes, _ in sizes), tuple(shares))


def _is_stored(operation: str) -> bool:
    """Whether the disk holds the kernels of an operation."""
    names = {kernel_name(operation, nbytes) for nbytes, _ in _SIZES}
    has_sum = operation not in REDUCING or is_sum_stored(_TYPE.name)
    return has_sum and all(map(is_kernel_stored, names))


def _fastest_s(call: Callable[..., object], arguments: tuple[object, ...], calls: int) -> float:
    """Time a call, in a row of some; the first row warms up."""
    best = float("inf")
    for repeat in range(_REPEATS + 1):
        began = time.perf_counter()
        for _ in range(calls):
            call(*arguments)
        if repeat:
            best = min(best, time.perf_counter() - began)
    return best / calls
