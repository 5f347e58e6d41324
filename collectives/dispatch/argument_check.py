"""The check that all ranks ask for the same: one all-reduce of a digest."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from closeranks.collectives.plans.collective import REDUCING, ROOTED
from closeranks.collectives.reduction.op import title
from closeranks.comms.buffers.datatype import signature
from closeranks.errors import Disagreement

if TYPE_CHECKING:
    from closeranks.collectives.arguments.collective_call import CollectiveCall


def agree_equal(plain: MPI.Intracomm, operation: str, said: str) -> None:
    """Raise `Disagreement` on every rank unless all ranks say the same.

    Collective.

    Parameters
    ----------
    plain : MPI.Intracomm
        The ranks.
    operation : str
        What is compared.
    said : str
        What this rank asks for, in words.

    Raises
    ------
    Disagreement
        On every rank, with what each one said.
    """
    digest = int.from_bytes(blake2b(said.encode(), digest_size=8).digest(), "little")
    pair = np.array([digest, digest ^ (2**64 - 1)], np.uint64)
    plain.Allreduce(MPI.IN_PLACE, pair, op=MPI.MAX)
    largest, smallest = int(pair[0]), int(pair[1]) ^ (2**64 - 1)
    if largest != smallest:
        raise Disagreement(operation, dict(enumerate(plain.allgather(said))))


def described(demand: CollectiveCall, algorithm: str, form: str) -> str:
    """Say in words what MPI and we oblige all ranks to agree on.

    Local.

    Parameters
    ----------
    demand : CollectiveCall
        The call.
    algorithm : str
        What was asked for: "auto", "native" or a name.
    form : str
        "" for a blocking call, "I" or "_init".

    Returns
    -------
    str
        Equal on all ranks of a right call, unlike on ranks of a wrong one.
    """
    name = demand.operation
    method = f"I{name}" if form == "I" else name.capitalize() + form
    words = []
    if name in ("allgatherv", "reduce_scatter") and demand.counts is not None:
        words.append(f"counts {_listed(demand.counts.tolist())}")
    elif demand.counts is None and name != "barrier":
        words.append(f"{demand.nbytes} bytes")
    known = demand.source or demand.target
    if known is not None and name not in REDUCING:
        words.append(f"of {signature(known.element)}")
    if name in REDUCING:
        words += [f"of {demand.dtype}", f"op {title(demand.op)}"]
    if name in ROOTED:
        words.append(f"root {demand.root}")
    if algorithm != "auto":
        words.append(f"algorithm {algorithm!r}")
    return f"{method}({', '.join(words)})"


def check_sizes(plain: MPI.Intracomm, demand: CollectiveCall) -> str | None:
    """Compare block sizes that only two ranks know.

    Collective; for gatherv, scatterv and alltoallv.

    Parameters
    ----------
    plain : MPI.Intracomm
        The ranks.
    demand : CollectiveCall
        The call, its operation and root already compared.

    Returns
    -------
    str or None
        What does not fit, on the rank that sees it.
    """
    counts = demand.counts
    if counts is None or demand.operation not in ("gatherv", "scatterv", "alltoallv"):
        return None
    if demand.operation == "alltoallv":
        coming = np.empty(demand.size, np.int64)
        plain.Alltoall(np.ascontiguousarray(counts[0]), coming)
        for peer in np.flatnonzero(coming != counts[1]).tolist():
            return f"receives {counts[1][peer]} bytes from rank {peer}, which sends {coming[peer]}"
        return None
    expected = counts.copy()
    plain.Bcast(expected, demand.root)
    mine = int(counts[demand.rank])
    if mine not in (-1, int(expected[demand.rank])):
        return f"a block of {mine} bytes, the root says {expected[demand.rank]}"
    return None


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"[{shown}]" if len(numbers) <= 8 else f"[{shown}, ... {hash(tuple(numbers)):x}]"
