"""Arguments that every rank must refuse."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from tests.fuzz.buffers import GUARD
from tests.fuzz.reference import Pair
from tests.fuzz.shapes import Step


def spoilt(step: Step, mine: Pair, both: Any) -> Pair:
    """Make arguments wrong."""
    sent, taken = mine
    if step["wrong"] == "root":
        return mine
    entries = taken.entries
    if step["wrong"] == "short":
        spec: Any = entries[:-1]
    elif step["wrong"] == "room":
        spec = [entries, both[1].block + 1, MPI.DOUBLE]
    elif step["wrong"] == "readonly":
        spec = entries.view()
        spec.flags.writeable = False
    elif step["wrong"] == "overlap":
        spec, length = entries, len(sent.entries)
        part = entries[1 : 1 + length] if length < len(entries) else entries
        sent = sent._replace(spec=part)
        if part is entries:
            whole = taken.window[GUARD - 8 : GUARD - 8 + entries.nbytes].view(entries.dtype)
            sent = sent._replace(spec=whole)
    elif step["wrong"] == "order":
        spec = entries.view(entries.dtype.newbyteorder())
    else:
        spec = entries.view("i8")
    return sent, taken._replace(spec=spec)
