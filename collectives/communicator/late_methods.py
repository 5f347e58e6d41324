"""Methods of a communicator whose work lies in packages above it.

A module of this package imports none of these; the table below says where the
work of such a method is, and the first call imports it.  It is the only door
that leads up: tests/test_layers.py reads the table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

#: What "explain" is asked for whose work is in the table.
SPARSE_SUM: Final = "allreduce_sparse"
#: Method of `Communicator` -> "module:callable", which takes the communicator first.
LATE: Final = {
    "Allreduce_sparse": "closeranks.collectives.sparse.pair_reduction:allreduce_sparse",
    "explain": "closeranks.collectives.sparse.pair_reduction:foretell_sparse",
    "bucketed": "closeranks.collectives.communicator.gradient_buckets:Buckets",
}


@cache
def late(method: str) -> Callable[..., Any]:
    """Import the work of a method.

    Local.

    Parameters
    ----------
    method : str
        A key of `LATE`.

    Returns
    -------
    callable
        Takes the communicator, then the arguments of the method.
    """
    module, _, name = LATE[method].partition(":")
    work: Callable[..., Any] = getattr(import_module(module), name)
    return work
