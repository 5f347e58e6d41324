"""The micro-batches that are given to a step."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from closeranks.collectives.coded.transport.round_wait import STEP
from closeranks.comms import argument
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.coded.schemes.scheme import Scheme


def read_parts(parts: Any) -> Sequence[Any]:
    """Read the micro-batches of a call.

    Local.

    Parameters
    ----------
    parts : sequence or int
        As given to `CodedAllreduce.step`; an array without axes is a number.

    Returns
    -------
    sequence
        The same; the range of a number.

    Raises
    ------
    UsageError
        If it is something else.
    """
    problem, remedy = f"parts is {argument.shown(parts)}", "give a sequence, or a number"
    if isinstance(parts, int | np.integer) or getattr(parts, "ndim", None) == 0:
        try:
            return range(operator.index(parts))
        except TypeError:
            raise UsageError(STEP, problem, remedy) from None
    is_sequence = hasattr(parts, "__len__") and hasattr(parts, "__getitem__")
    if not is_sequence or isinstance(parts, Mapping):
        raise UsageError(STEP, problem, remedy)
    found: Sequence[Any] = parts
    return found


def check_enough(count: int, scheme: Scheme) -> None:
    """Refuse fewer micro-batches than a scheme has parts.  Local.

    Raises
    ------
    UsageError
        If there are fewer.
    """
    if count < scheme.parts:
        problem = f"{count} micro-batches for {scheme.parts} parts of {type(scheme).__name__}"
        raise UsageError(STEP, problem, f"cut the batch into at least {scheme.parts}")
