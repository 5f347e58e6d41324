"""The machine of a table of `closeranks tune`, and whether the table fits here.

`job_origin` names the machine of remembered findings, which is told apart more
finely.
"""

from __future__ import annotations

import os
import sys
import warnings
from hashlib import blake2b
from typing import TYPE_CHECKING

from mpi4py import MPI

from closeranks.collectives.selection.remembered import JobOrigin, transport_settings
from closeranks.collectives.selection.rules import Rules
from closeranks.collectives.selection.tuning_table import Origin, Tuned, shape
from closeranks.comms.jit.code_cache import MOST, processor
from closeranks.comms.wait import crowding

if TYPE_CHECKING:
    from closeranks.comms.topology.topology import Topology

_REMEDY = "make one here with closeranks tune"


def here(topology: Topology) -> Origin:
    """Say where this process runs.  Local.

    Parameters
    ----------
    topology : Topology
        Of the job.

    Returns
    -------
    Origin
        With the name of this node's processor.
    """
    library = MPI.Get_library_version().splitlines()[0].split(",")[0].strip(" \0")
    nodes = topology.count("node") if "node" in topology.levels else 1
    return Origin(library[:MOST], processor(), shape(topology), topology.size, nodes)


def job_origin(topology: Topology) -> JobOrigin:
    """Say on what the findings of this job depend.

    Local.  Call it where a world is open, so that it is known how many ranks share
    a core.

    Parameters
    ----------
    topology : Topology
        Of the first communicator.

    Returns
    -------
    JobOrigin
        With the processor, cores and environment of this process.
    """
    # The package stands above all rooms, which import nothing of it; here it is there already.
    release: str = sys.modules[__name__.partition(".")[0]].__version__
    build = blake2b(MPI.Get_library_version().encode(), digest_size=8).hexdigest()
    settings = transport_settings(os.environ)
    return JobOrigin(release, here(topology), build, round(crowding(), 2), settings)


def fitting(plain: MPI.Intracomm, given: Rules | Tuned, topology: Topology) -> Tuned | None:
    """Give the part of a table that fits here; a warning on rank 0 names the rest.

    Collective over ``plain``; the same on every rank.

    Parameters
    ----------
    plain : MPI.Intracomm
        The ranks.
    given : Rules or Tuned
        The same table on every rank.
    topology : Topology
        Where they sit, the same on every rank.

    Returns
    -------
    Tuned or None
        See `Tuned.within`; None if there is no such table, or it is another
        library's or another processor's.
    """
    if isinstance(given, Rules):
        return None
    objection: str | None = None
    if plain.rank == 0:
        objection = given.origin.objection(here(topology))
        remarks = [objection] if objection else given.remarks(topology)
        if remarks:
            used = "is not used" if objection else "is used in part"
            text = f"the tuning table {used}: {'; '.join(remarks)}; {_REMEDY}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    objection = plain.bcast(objection)
    return None if objection else given.within(topology)
