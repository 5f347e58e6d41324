"""Sparse collectives: little data, known only at run time, wanted by some ranks.

* `canonical_pairs`: pairs whose indices ascend, each once.
* `device_copies`: arguments that lie on a device, read on the host.
* `region_cuts`: where the index space is cut.
* `agreed_numbers`: what ranks must agree on, and numbers beside it.
* `pair_agreement`: what ranks agree on before pairs travel.
* `pair_plans`: plans of pairs, run for the pairs of a call.
* `pair_prices`: what the algorithms of a sum would cost.
* `pair_reduction`: `Communicator.Allreduce_sparse`.
* `kth_largest`: the k-th largest key of all ranks, by counting digits.
* `topk_reduction`: `topk_allreduce`.
* `row_transport`: lists of wanted rows, and the plans that move them.
* `chunks`: arrays of any shape that some ranks want, and sums of them.
* `route`: `Route`, rows such as tokens that some ranks want.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from closeranks.collectives.pairs.sparse_vector import SparseVector

if TYPE_CHECKING:
    from closeranks.collectives.sparse.chunks import allgather_chunks, reduce_scatter_chunks
    from closeranks.collectives.sparse.route import Route
    from closeranks.collectives.sparse.topk_reduction import topk_allreduce

__all__ = [
    "Route",
    "SparseVector",
    "allgather_chunks",
    "reduce_scatter_chunks",
    "topk_allreduce",
]

#: Names that need MPI, and the modules that they are in.
_LATE: Final = {
    "Route": "closeranks.collectives.sparse.route",
    "allgather_chunks": "closeranks.collectives.sparse.chunks",
    "reduce_scatter_chunks": "closeranks.collectives.sparse.chunks",
    "topk_allreduce": "closeranks.collectives.sparse.topk_reduction",
}


def __getattr__(name: str) -> object:
    """Import what needs MPI when it is first asked for."""
    if name not in _LATE:
        raise AttributeError(f"module 'closeranks.collectives.sparse' has no attribute {name!r}")
    value: object = getattr(import_module(_LATE[name]), name)
    globals()[name] = value
    return value
