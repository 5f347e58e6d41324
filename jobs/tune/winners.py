"""Which algorithm wins each size, found by the trials that a job would make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from closeranks.collectives.arguments.call_key import UNSIZED
from closeranks.collectives.selection.rules import UNLIMITED, Ladder, Rules
from closeranks.collectives.selection.trial import RACES
from closeranks.jobs.bench.measuring.collective_facts import call_bytes
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES
from closeranks.jobs.bench.measuring.comparison import make_case

if TYPE_CHECKING:
    from collections.abc import Callable

    from closeranks.jobs.bench.measuring.session import Session

#: Operation -> (bytes as the choice sees them, algorithm), ascending.
Found = Mapping[str, Sequence[tuple[int, str]]]
#: Of operations whose sizes only some ranks know, and that have one choice for all.
_TYPICAL_BYTES = 4096


def settle(session: Session, tell: Callable[[str, str, int], None]) -> Found:
    """Make the trials of a session's operations and sizes.

    Collective.

    Parameters
    ----------
    session : Session
        Its communicator makes the trials.
    tell : callable
        Hears what comes next.

    Returns
    -------
    mapping
        The same on every rank.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    session.comm.membership.chooser.try_all()
    for name, nbytes in asked(session.request.names, session.request.sizes):
        tell(name, "trial", nbytes)
        size, winner = _settled(session, name, nbytes)
        known = found.setdefault(name, [])
        if not known or known[-1][0] < size:
            known.append((size, winner))
    return found


def asked(names: Sequence[str], sizes: Sequence[int]) -> list[tuple[str, int]]:
    """List what is tried: operations and bytes of the whole.

    Parameters
    ----------
    names : sequence of str
        Operations.
    sizes : sequence of int
        Bytes, ascending.

    Returns
    -------
    list of (str, int)
        In order; one size for a barrier and where sizes make no difference.
    """
    chosen = []
    for name in names:
        of_name = (0,) if name == "barrier" else (_TYPICAL_BYTES,) if name in UNSIZED else sizes
        chosen += [(name, nbytes) for nbytes in of_name]
    return chosen


def rules(found: Found) -> Rules:
    """Turn winners of some sizes into rules; pure.

    Parameters
    ----------
    found : mapping
        Of `settle`.

    Returns
    -------
    Rules
        A size between two goes with the nearer one; those above twice the
        largest are left open.
    """
    return Rules({name: _ladder(name, known) for name, known in found.items() if known})


def _ladder(name: str, known: Sequence[tuple[int, str]]) -> Ladder:
    if name in UNSIZED or name == "barrier":
        return ((UNLIMITED, known[-1][1]),)
    ends = [math.isqrt(low * high) for (low, _), (high, _) in pairwise(known)]
    limits = [*ends, max(2 * known[-1][0] - 1, 0)]
    steps: list[tuple[float, str]] = []
    for limit, (_, winner) in zip(limits, known, strict=True):
        if steps and steps[-1][1] == winner:
            steps.pop()
        steps.append((limit, winner))
    return tuple(steps)


def _settled(session: Session, name: str, nbytes: int) -> tuple[int, str]:
    """Make the calls that are trials; return what the choice sees, and the winner."""
    collective, dtype = COLLECTIVES[name], session.request.dtype
    case = make_case(session, collective, nbytes)
    size, call = call_bytes(collective, case.problem), case.ours("auto")
    for _ in range(RACES):
        for _ in range(session.comm.explain(name, size, dtype).calls_to_settle):
            call()
    return size, session.comm.explain(name, size, dtype).algorithm
