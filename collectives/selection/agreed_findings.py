"""What earlier jobs have found, the same on all ranks: rank 0 reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.selection.findings import TrialFindings
    from closeranks.collectives.selection.remembered import FindingsFile


def first_findings(plain: MPI.Intracomm, file: FindingsFile | None) -> dict[str, TrialFindings]:
    """Let rank 0 read its file, so that all ranks begin with the same findings.

    Collective: one broadcast, of a few bytes where nothing is remembered.

    Parameters
    ----------
    plain : MPI.Intracomm
        The ranks of a first communicator.
    file : FindingsFile or None
        Of this rank; None on others than rank 0.

    Returns
    -------
    dict of str to TrialFindings
        By `closeranks.collectives.selection.tuning_table.shape`.
    """
    found = file.read() if file is not None else {}
    taken: dict[str, TrialFindings] = plain.bcast(found)
    return taken
