"""Options that hold inside a ``with comm.using(...)`` block.

They are kept per context (`contextvars`), so that threads and asynchronous
tasks do not disturb each other, and concern the communicator they were set on
and those derived from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from closeranks.collectives.catalogue import ALGORITHMS, algorithms
from closeranks.collectives.problem import OPERATIONS
from closeranks.errors import UsageError

AUTO, NATIVE = "auto", "native"


@dataclass(frozen=True)
class Options:
    """What a block asked for.

    Attributes
    ----------
    owner : object
        The family of communicators it concerns.
    algorithms : mapping of str to str
        Operation -> algorithm.
    timeout_s : float or None
        Deadline of each call, seconds.
    """

    owner: object
    algorithms: Mapping[str, str]
    timeout_s: float | None = None


ACTIVE: ContextVar[tuple[Options, ...]] = ContextVar("closeranks.using", default=())


def active(owner: object) -> Options | None:
    """Give the innermost options that concern a communicator, or None.

    Parameters
    ----------
    owner : object
        Its family.

    Returns
    -------
    Options or None
        Of the current context.
    """
    for options in reversed(ACTIVE.get()):
        if options.owner is owner:
            return options
    return None


def chosen_names(algorithm: str | Mapping[str, str], where: str) -> dict[str, str]:
    """Read which algorithm is wanted for which operation.

    Parameters
    ----------
    algorithm : str or mapping of str to str
        One name for every operation that knows it, or operation -> name.
    where : str
        Who asks, for the text of an error.

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
        names = dict.fromkeys(OPERATIONS, algorithm)
        if algorithm != NATIVE:
            names = {op: algorithm for op in ALGORITHMS if algorithm in algorithms(op)}
        if not names:
            every = sorted({name for op in ALGORITHMS for name in algorithms(op)})
            raise UsageError(where, f"no algorithm {algorithm!r}",
                             f"one of auto, native, {', '.join(every)}")  # fmt: skip
        return names
    return {op: known_name(op, name, where) for op, name in algorithm.items() if name != AUTO}


def known_name(operation: str, name: str, where: str) -> str:
    """Return ``name`` if an operation knows it.

    Parameters
    ----------
    operation : str
        For instance ``"allreduce"``.
    name : str
        "native" or a name from `algorithms`.
    where : str
        Who asks, for the text of an error.

    Returns
    -------
    str
        The name.

    Raises
    ------
    UsageError
        With the choices, if it is not known (local).
    """
    if operation not in OPERATIONS:
        raise UsageError(where, f"no operation {operation!r}", f"one of {', '.join(OPERATIONS)}")
    choices = (NATIVE, *(algorithms(operation) if operation in ALGORITHMS else ()))
    if name not in choices:
        raise UsageError(where, f"no algorithm {name!r} of {operation}",
                         f"one of auto, {', '.join(choices)}")  # fmt: skip
    return name
