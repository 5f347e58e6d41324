"""How SHARED leaves run: as kernels in the memory of their node.

A kernel serves a leaf if Numba can combine its elements; all members find the
same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.engine.progress_answer import Look, Poll
from closeranks.collectives.plans.collective import REDUCING
from closeranks.collectives.plans.schedule import Leaf
from closeranks.collectives.reduction.compiled_ops import Combiner, combiner_of
from closeranks.collectives.reduction.op import Reducer
from closeranks.collectives.shm.segment import STARTED
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import function_at

if TYPE_CHECKING:
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.execution import Execution
    from closeranks.collectives.shm.segment import NodeMemory

Array = NDArray[Any]
Kernel = Callable[[int, int, int, int, int], bool]

#: Vectors up to this many bytes are reduced in one shot.
SHORT_BYTES = 4096


def kernel_for(operation: str, nbytes: int) -> Kernel:
    """Return the kernel of an operation.

    Local.  The first call in a process loads it, compiling it where nobody has.

    Parameters
    ----------
    operation : str
        One of `closeranks.collectives.builders.leaf_expansions`.
    nbytes : int
        Bytes of the vector.

    Returns
    -------
    callable
        ``kernel(frame, state, source, target, nbytes)``, all but the last
        addresses; True when it is over.
    """
    return load_kernel(kernel_name(operation, nbytes))


def kernel_name(operation: str, nbytes: int) -> str:
    """Name the kernel of an operation, see `kernel_for`.  Local."""
    if operation != "allreduce":
        return operation
    return "allreduce_one_shot" if nbytes <= SHORT_BYTES else "allreduce_two_shot"


@cache
def load_kernel(name: str) -> Kernel:
    """Load a kernel by its name.  Local."""
    return function_at(kernel_address(name), 5)


def kernel_address(name: str) -> int:
    """Give the address of a kernel, a C function.  Local."""
    home = "allreduce_kernels" if name.startswith("allreduce") else "movement_kernels"
    return code_cache.address_of(f"closeranks.collectives.shm.{home}", name)


def combiner_for(operation: str, reducer: object, dtype: np.dtype[Any]) -> Combiner | None:
    """Return what combines the elements of a leaf; None where nothing can.  Local."""
    if operation not in REDUCING or not isinstance(reducer, Reducer):
        return None
    return combiner_of(reducer.name, dtype)


class Shared:
    """One SHARED step of a bound plan.

    Attributes
    ----------
    leaf : Leaf
        What it runs.
    memory : NodeMemory
        Where.
    """

    __slots__ = ("leaf", "memory")

    def __init__(self, leaf: Leaf, memory: NodeMemory) -> None:
        self.leaf, self.memory = leaf, memory

    def enter(self, execution: Execution, step: int) -> None:
        """Queue for the memory: called in the order of sequence numbers."""
        self.memory.enter(execution, step)

    def start(self, execution: Execution, step: int, source: Array, block: Array) -> Poll:
        """Run the kernel, a little at each look, as soon as it is this step's turn."""
        turns, state = self.memory.turns, self.memory.state.ctypes.data
        operation, bound = self.leaf.operation, execution.bound
        combiner = combiner_for(operation, bound.reducer, bound.dtype)
        frame = self.memory.frame(combiner, block.dtype.itemsize, self.leaf.root).ctypes.data
        nbytes = _BYTES[operation](source, block, len(self.leaf.members))
        kernel = kernel_for(operation, nbytes)
        given, taken = source.ctypes.data, block.ctypes.data

        def poll() -> Look:
            whose, at = turns[0]
            if at == STARTED:
                whose.advance()
            elif (whose, at) == (execution, step) and kernel(frame, state, given, taken, nbytes):
                self.memory.leave()
                return Look.DONE
            return Look.WAITING

        return poll


#: Bytes as the kernels count them, from input, output and size: of the vector,
#: or of one rank's block.
_BYTES: dict[str, Callable[[Array, Array, int], int]] = {
    "allreduce": lambda _source, block, _size: block.nbytes,
    "allgather": lambda source, _block, _size: source.nbytes,
    "alltoall": lambda source, _block, size: source.nbytes // size,
    "barrier": lambda _source, _block, _size: 0,
    "bcast": lambda _source, block, _size: block.nbytes,
    "reduce": lambda source, _block, _size: source.nbytes,
    "reduce_scatter_block": lambda _source, block, _size: block.nbytes,
}


def make(leaf: Leaf, world: World, reducer: object, dtype: np.dtype[Any]) -> Shared | None:
    """Choose a kernel for a leaf, see `closeranks.collectives.engine.native_leaves`.

    Collective over the leaf's members at the first leaf of those ranks.

    Parameters
    ----------
    leaf : Leaf
        A leaf over ranks of any node, ascending.
    world : World
        Whose memory is used.
    reducer : object
        The plan's `Reducer`, if it has one.
    dtype : numpy.dtype
        The plan's element.

    Returns
    -------
    Shared or None
        None if it must be written out as moves.
    """
    if leaf.operation not in _BYTES or len(leaf.members) < 2:
        return None
    if not world.kernels or not set(leaf.members) <= set(world.node_ranks):
        return None
    if leaf.operation in REDUCING and combiner_for(leaf.operation, reducer, dtype) is None:
        return None
    return Shared(leaf, world.memory(leaf.members))
