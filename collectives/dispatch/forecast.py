"""What a call would be served by, said without serving it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from closeranks.collectives.arguments.call_key import UNSIZED, Agreed, size_class
from closeranks.collectives.plans.collective import OF_ONE, OPERATIONS, REDUCING
from closeranks.collectives.selection.call_options import AUTO
from closeranks.collectives.selection.explanation import Explanation, explain
from closeranks.comms import argument
from closeranks.comms.buffers.datatype import element
from closeranks.comms.buffers.half_as_float import HALVES
from closeranks.comms.mpi import messages
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service


def foretell(
    service: Service,
    operation: str,
    nbytes: int | None,
    dtype: np.dtype[Any],
    *,
    commutes: bool = True,
) -> Explanation:
    """Say which algorithm a call would use, and why.

    Local.

    Parameters
    ----------
    service : Service
        Who would serve it.
    operation : str
        For instance ``"allreduce"``.
    nbytes : int
        Bytes of the vector, or of one rank's block.
    dtype : numpy.dtype
        Element, for operations that reduce.
    commutes : bool
        Whether operands may change places.

    Returns
    -------
    Explanation
        Printable.

    Raises
    ------
    UsageError
        If there is no such operation or size (local).
    """
    if not isinstance(operation, str) or operation not in OPERATIONS:
        problem = f"no operation {argument.shown(operation)}"
        raise UsageError("explain", problem, f"one of {', '.join(OPERATIONS)}, allreduce_sparse")
    nbytes = argument.whole("explain", "nbytes", nbytes, below=argument.MOST // service.size)
    family, reduces = service.family, operation in REDUCING
    wire = service.choice.wire() if reduces and dtype.name in HALVES else None
    travels = dtype if wire is None else np.dtype(wire)
    sent = nbytes * travels.itemsize // dtype.itemsize
    library_can = not reduces or element(None, travels, operation).datatype is not None
    total = sent if operation in OF_ONE else sent * service.size
    library_can = library_can and not messages.is_long(total)
    size = 0 if operation in UNSIZED else size_class(sent)
    call = Agreed(operation, size, commutes or not reduces, library_can)
    asked = service.choice.wanted(operation, AUTO)
    wanted = family.tuning.name(operation, sent) if asked == AUTO else asked
    found = explain(service.chooser, call, sent, dtype.name if reduces else "", forced=wanted)
    way = service.relay.way(operation, sent, asked, found.algorithm) if family.devices else ""
    return replace(found, nbytes=nbytes, wire=wire or "", device=way)
