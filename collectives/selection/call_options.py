"""Options that hold inside a ``with comm.using(...)`` block.

They are kept per context (`contextvars`), so that threads and asynchronous
tasks do not disturb each other, and concern the communicator they were set on
and those derived from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from closeranks.collectives.builders.catalogue import ALGORITHMS, algorithms
from closeranks.collectives.plans.collective import OPERATIONS
from closeranks.comms import argument
from closeranks.comms.buffers.half_as_float import HALVES, WIDE
from closeranks.comms.wait import Deadline
from closeranks.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


AUTO, NATIVE, SHARED, NCCL, IPC = "auto", "native", "shared", "nccl", "ipc"
#: How devices do it among themselves, and what; see
#: `closeranks.collectives.dispatch.device_collectives`.
AMONG_DEVICES = (NCCL, IPC)
BY_DEVICES = ("allreduce", "bcast", "reduce", "allgather", "reduce_scatter_block")


@dataclass(frozen=True)
class CallOptions:
    """The options of a block.

    Attributes
    ----------
    owner : object
        The family of communicators it concerns.
    algorithms : mapping of str to str
        Operation -> algorithm.
    timeout_s : float or None
        Deadline of each call, seconds; infinite: none, even if one was set.
    wire : str or None
        Type in which sums and products of half precision travel; None for their
        own.
    """

    owner: object
    algorithms: Mapping[str, str]
    timeout_s: float | None = None
    wire: str | None = None

    def within(self, outer: CallOptions | None) -> CallOptions:
        """Give these options, and those of an outer block for the others."""
        if outer is None:
            return self
        return CallOptions(
            self.owner,
            {**outer.algorithms, **self.algorithms},
            outer.timeout_s if self.timeout_s is None else self.timeout_s,
            outer.wire if self.wire is None else self.wire,
        )


ACTIVE: ContextVar[tuple[CallOptions, ...]] = ContextVar("closeranks.using", default=())


def active(owner: object) -> CallOptions | None:
    """Give the innermost options that concern a communicator, or None.

    Parameters
    ----------
    owner : object
        Its family.

    Returns
    -------
    CallOptions or None
        Of the current context.
    """
    for options in reversed(ACTIVE.get()):
        if options.owner is owner:
            return options
    return None


class TimedFamily(Protocol):
    """A family whose calls may have a deadline, in seconds each."""

    @property
    def timeout_s(self) -> float | None:
        """As `init` was given it; None: no deadline."""


def deadline(family: TimedFamily) -> Deadline | None:
    """Start the clock of a call, if calls have one here.

    Local.

    Parameters
    ----------
    family : TimedFamily
        Of the communicator.

    Returns
    -------
    Deadline or None
        By the option of a block, else by that of
        `closeranks.collectives.communicator.initialization`.
    """
    options = active(family)
    asked_s = None if options is None else options.timeout_s
    limit_s = family.timeout_s if asked_s is None else asked_s
    return None if limit_s in (None, math.inf) else Deadline(limit_s)


def read(
    family: object,
    algorithm: str | Mapping[str, str],
    timeout_s: float | None,
    wire: DTypeLike | None,
) -> CallOptions:
    """Read the arguments of `Communicator.using`.

    Local.

    Parameters
    ----------
    family : TimedFamily
        Of the communicator.
    algorithm, timeout_s, wire
        See there.

    Returns
    -------
    CallOptions
        The wanted options.

    Raises
    ------
    UsageError, Unavailable
        If an option cannot be used.
    """
    names = chosen_names(algorithm, "using")
    argument.check_timeout("using", timeout_s)
    return CallOptions(family, names, timeout_s, known_wire(wire, "using"))


@contextmanager
def unforced(owner: object) -> Iterator[None]:
    """Let calls of a block use the best algorithm, without a deadline.  Local.

    Parameters
    ----------
    owner : object
        The family of communicators.

    Yields
    ------
    None
        Until the block ends.
    """
    token = ACTIVE.set((*ACTIVE.get(), CallOptions(owner, {}, math.inf)))
    try:
        yield
    finally:
        ACTIVE.reset(token)


def chosen_names(algorithm: str | Mapping[str, str], where: str) -> dict[str, str]:
    """Read which algorithm is wanted for which operation.

    Parameters
    ----------
    algorithm : str or mapping of str to str
        One name for every operation that knows it, or operation -> name.
    where : str
        Name of the caller, for the text of an error.

    Returns
    -------
    dict of str to str
        Operation -> name; "auto" is left out.

    Raises
    ------
    UsageError
        If there is no such operation or algorithm (local).
    """
    if isinstance(algorithm, str):
        if algorithm == AUTO:
            return {}
        names = dict.fromkeys(BY_DEVICES if algorithm in AMONG_DEVICES else OPERATIONS, algorithm)
        if algorithm not in (NATIVE, *AMONG_DEVICES):
            names = {op: algorithm for op in ALGORITHMS if algorithm in algorithms(op)}
        if not names:
            every = sorted({name for op in ALGORITHMS for name in algorithms(op)})
            raise UsageError(where, f"no algorithm {algorithm!r}",
                             f"one of auto, native, {', '.join(every)}")  # fmt: skip
        return names
    remedy = "give a name, or operation -> name"
    argument.instance(where, "algorithm", algorithm, Mapping, remedy)
    return {op: known_name(op, name, where) for op, name in algorithm.items()
            if not (isinstance(name, str) and name == AUTO)}  # fmt: skip


def known_wire(wire: DTypeLike | None, where: str) -> str | None:
    """Read in which type sums and products of half precision travel.

    Parameters
    ----------
    wire : dtype or None
        float32, as NumPy writes it.
    where : str
        Name of the caller, for the text of an error.

    Returns
    -------
    str or None
        Its name; None for each type's own.

    Raises
    ------
    UsageError
        If it is another type (local).
    Unavailable
        If it is a narrower one, which would be a compression (local).
    """
    if wire is None:
        return None
    try:
        name = np.dtype(wire).name
    except (TypeError, ValueError):
        name = argument.shown(wire)
    if name in HALVES:
        raise Unavailable(f"compression in flight (wire={name!r})", "use wire='float32'")
    if name != WIDE.name:
        raise UsageError(where, f"no wire {name}", "float32, or leave wire out")
    return name


def known_name(operation: str, name: str, where: str) -> str:
    """Return ``name`` if an operation knows it.

    Parameters
    ----------
    operation : str
        For instance ``"allreduce"``.
    name : str
        "native" or a name from `algorithms`.
    where : str
        Name of the caller, for the text of an error.

    Returns
    -------
    str
        The name.

    Raises
    ------
    UsageError
        With the choices, if it is not known (local).
    """
    if not isinstance(operation, str) or operation not in OPERATIONS:
        raise UsageError(
            where, f"no operation {argument.shown(operation)}", f"one of {', '.join(OPERATIONS)}"
        )
    choices = (NATIVE, *(algorithms(operation) if operation in ALGORITHMS else ()))
    choices += AMONG_DEVICES if operation in BY_DEVICES else ()
    if not isinstance(name, str) or name not in choices:
        raise UsageError(where, f"no algorithm {argument.shown(name)} of {operation}",
                         f"one of auto, {', '.join(choices)}")  # fmt: skip
    return name
