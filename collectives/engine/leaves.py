"""Leaves of a plan: how they run, chosen when the plan is bound.

* A NATIVE leaf runs as one non-blocking collective of the MPI library on a
  communicator of its members, if the library has the collective and names for
  its op and type.
* A SHARED leaf runs as a kernel in the memory of its node, if Numba can
  combine its elements.
* Every other leaf, and a native one where ranks may die, is written out as the
  moves it stands for.

All members find the same answer; `Bound.native` and `Bound.written_out` show
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.leaf_expansions import expand
from closeranks.collectives.engine.progress_answer import Poll, ProgressAnswer
from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.collective import REDUCING
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.plans.schedule import Kind, Leaf, Schedule, Step
from closeranks.collectives.reduction.compiled_ops import Combiner, combiner_of
from closeranks.collectives.reduction.op import Reducer
from closeranks.collectives.shm.segment import STARTED
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import function_at
from closeranks.comms.mpi import messages, ulfm

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.engine.call_guard import Lane
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.execution import Execution
    from closeranks.collectives.shm.segment import NodeMemory


Array = NDArray[Any]
Kernel = Callable[[int, int, int, int, int], bool]

#: Vectors up to this many bytes are reduced in one shot.
SHORT_BYTES = 4096


def kernel_for(operation: str, nbytes: int) -> Kernel:
    """Return the kernel of an operation.

    Local.  The first call in a process loads it, and compiles it if the cache
    lacks it.

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
    return code_cache.address_of(_home_of(name), name)


def is_kernel_stored(name: str) -> bool:
    """Tell whether the disk holds a kernel, compiled.  Local."""
    return code_cache.is_stored(_home_of(name), name)


def _home_of(name: str) -> str:
    home = "allreduce_kernels" if name.startswith("allreduce") else "movement_kernels"
    return f"closeranks.collectives.shm.{home}"


def combiner_for(operation: str, reducer: object, dtype: np.dtype[Any]) -> Combiner | None:
    """Return the combiner of a leaf's elements; None if there is none.  Local."""
    if operation not in REDUCING or not isinstance(reducer, Reducer):
        return None
    return combiner_of(reducer.name, dtype)


class Shared:
    """One SHARED step of a bound plan.

    Attributes
    ----------
    leaf : Leaf
        The leaf that it runs.
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

        def poll() -> ProgressAnswer:
            whose, at = turns[0]
            if at == STARTED:
                whose.advance()
            elif (whose, at) == (execution, step) and kernel(frame, state, given, taken, nbytes):
                self.memory.leave()
                return ProgressAnswer.DONE
            return ProgressAnswer.WAITING

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
    """Choose a kernel for a SHARED leaf.

    Collective over the leaf's members at the first leaf of those ranks.

    Parameters
    ----------
    leaf : Leaf
        A leaf over ranks of any node, ascending.
    world : World
        The world with the node's memory.
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


BYTE_DTYPE = np.dtype(np.uint8)


class Call(NamedTuple):
    """The arguments of one native collective.

    Attributes
    ----------
    comm : MPI.Intracomm
        The group's communicator.
    source, block : ndarray, 1-D
        Input and output.
    unit : MPI.Datatype
        The element where it reduces, else MPI.BYTE.
    op : MPI.Op
        The reduction, if it is one.
    root : int
        Rank of the root in ``comm``.
    """

    comm: MPI.Intracomm
    source: Array
    block: Array
    unit: MPI.Datatype
    op: MPI.Op
    root: int

    @property
    def given(self) -> Any:
        """The input as MPI takes it: IN_PLACE where it lies in the output."""
        from mpi4py import MPI

        return MPI.IN_PLACE if np.may_share_memory(self.source, self.block) else self.input

    @property
    def input(self) -> Any:
        """The input as a buffer specification."""
        return self._spec(self.source)

    @property
    def output(self) -> Any:
        """The output as a buffer specification."""
        return self._spec(self.block)

    def _spec(self, view: Array) -> Any:
        return [view.view(np.uint8), self.unit]  # a count would be one rank's in some calls


_Issue: TypeAlias = "Callable[[Call], MPI.Request]"


def _reduce(call: Call) -> MPI.Request:
    if call.comm.rank != call.root:
        return call.comm.Ireduce(call.input, None, call.op, call.root)
    return call.comm.Ireduce(call.given, call.output, call.op, call.root)


def _bcast(call: Call) -> MPI.Request:
    if call.comm.rank == call.root and not np.may_share_memory(call.source, call.block):
        np.copyto(call.block, call.source)
    return call.comm.Ibcast(call.output, call.root)


#: The library's non-blocking collective of each operation a leaf may name.
ISSUES: dict[str, _Issue] = {
    "allreduce": lambda call: call.comm.Iallreduce(call.given, call.output, call.op),
    "allgather": lambda call: call.comm.Iallgather(call.given, call.output),
    "alltoall": lambda call: call.comm.Ialltoall(call.given, call.output),
    "barrier": lambda call: call.comm.Ibarrier(),
    "bcast": _bcast,
    "reduce": _reduce,
    "reduce_scatter_block": lambda call: call.comm.Ireduce_scatter_block(
        call.input, call.output, call.op
    ),
}


class Native:
    """One NATIVE step of a bound plan.

    Attributes
    ----------
    leaf : Leaf
        The leaf that it runs.
    lane : Lane
        The communicator of its members, and the turns of its steps.
    """

    __slots__ = ("_op", "_unit", "lane", "leaf")

    def __init__(self, leaf: Leaf, lane: Lane, reducer: Reducer | None) -> None:
        from mpi4py import MPI

        self.leaf, self.lane = leaf, lane
        self._op, self._unit = MPI.OP_NULL, MPI.BYTE
        if leaf.operation in REDUCING and reducer and reducer.op and reducer.datatype:
            self._op, self._unit = reducer.op, reducer.datatype

    def enter(self, execution: Execution, step: int) -> None:
        """Queue for the communicator: called in the order of sequence numbers."""
        self.lane.turns.append((execution, step))

    def start(self, execution: Execution, step: int, source: Array, block: Array) -> Poll:
        """Issue the collective as soon as it is this step's turn."""

        def poll() -> ProgressAnswer:
            comm, turns = self.lane
            if turns[0] != (execution, step):
                return ProgressAnswer.WAITING
            turns.popleft()
            call = Call(comm, source, block, self._unit, self._op, self.leaf.root)
            execution.follow(step, ISSUES[self.leaf.operation](call))
            return ProgressAnswer.POSTED

        return poll


def _items(block: object) -> int:
    """Count the items of one side of a leaf; on one side all members find the same."""
    return block.items if isinstance(block, Block) and block.is_static else 0


Run: TypeAlias = "Native | Shared"


def run_of(
    step: Step, world: World, reducer: object, dtype: np.dtype[Any] = BYTE_DTYPE
) -> Run | None:
    """Choose how a leaf runs; None if it must be written out.

    Called by all members of the leaf, which find the same.  The first native leaf
    of a group makes its communicator.

    Parameters
    ----------
    step : Step
        A NATIVE or SHARED step.
    world : World
        The world with the communicators.
    reducer : object
        The plan's `Reducer`, if it has one.
    dtype : numpy.dtype
        The plan's element.

    Returns
    -------
    Native, Shared or None
        Its run.
    """
    leaf = step.action
    assert isinstance(leaf, Leaf)
    if step.kind == Kind.SHARED:
        return make(leaf, world, reducer, dtype)
    known = reducer if isinstance(reducer, Reducer) else None
    if leaf.operation not in ISSUES or (ulfm.is_on() and leaf.operation != "barrier"):
        return None  # of any length, see `closeranks.comms.mpi.ulfm.BRIEF_BYTES`
    if leaf.operation in REDUCING and (known is None or known.op is None):
        return None
    if messages.is_long(max(map(_items, (step.block, step.source))) * dtype.itemsize):
        return None
    return Native(leaf, world.lane(leaf.members), known)


def chosen(
    plan: Plan, rank: int, world: World, reducer: object, dtype: np.dtype[Any] = BYTE_DTYPE
) -> tuple[Schedule, list[Step], dict[int, Run], tuple[Leaf, ...]]:
    """Write a rank's steps with every leaf chosen, see `run_of`.

    Returns
    -------
    script : Schedule
        Of ``rank``.
    steps : list of Step
        Leaves that cannot run are written out as moves.
    native : dict of int to Native or Shared
        Step -> run, of the leaves that are left.
    written_out : tuple of Leaf
        The others.
    """
    script, steps = plan.script(rank)
    if not any(step.kind in (Kind.NATIVE, Kind.SHARED) for step in steps):
        return script, steps, {}, ()
    leaves = [step for step in steps if isinstance(step.action, Leaf)]
    runs = {id(step): run_of(step, world, reducer, dtype) for step in leaves}
    gone = tuple(
        step.action for step in leaves if isinstance(step.action, Leaf) and runs[id(step)] is None
    )
    script, steps = expand(script, steps, keep=lambda step: runs[id(step)] is not None)
    left = [number for number, step in enumerate(steps) if isinstance(step.action, Leaf)]
    kept = [run for run in runs.values() if run is not None]
    return script, steps, dict(zip(left, kept, strict=True)), gone
