"""The tuning that all ranks use: rank 0 reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from closeranks.collectives.arguments.native_handover import agreed_max
from closeranks.collectives.selection.tuning_table import tuning as read_tuning
from closeranks.errors import Disagreement, Error

if TYPE_CHECKING:
    from mpi4py import MPI


def agreed_tuning(plain: MPI.Intracomm, given: Any) -> Any:
    """Let rank 0 read a file or a measured table, so that all ranks have the same.

    Collective.

    Parameters
    ----------
    plain : MPI.Intracomm
        The ranks.
    given : object
        The argument of `closeranks.init` on this rank.

    Returns
    -------
    object
        For `closeranks.collectives.selection.tuning_table.tuning`.

    Raises
    ------
    Disagreement, Error
        On every rank, if only some were given a table, or it cannot be read.
    """
    rules = given is None or (isinstance(given, Mapping) and "format" not in given)
    most, least = agreed_max(plain, [float(rules), -float(rules)])
    if most != -least:  # some would wait for rank 0, and the others not
        files = plain.allgather("no tuning file" if rules else f"tuning={str(given)[:60]}")
        raise Disagreement("init", dict(enumerate(files)),
                           "set tuning, or CLOSERANKS_TUNING, on every rank")  # fmt: skip
    if rules:
        return given
    said: Any = None
    if plain.rank == 0:
        try:
            said = read_tuning(given).table()
        except Error as error:
            said = error
    said = plain.bcast(said)
    if isinstance(said, Error):
        raise said
    return said
