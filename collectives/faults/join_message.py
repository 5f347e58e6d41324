"""What newcomers cannot find out alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from closeranks.collectives.selection.tuning_table import shape

if TYPE_CHECKING:
    from closeranks.collectives.arguments.call_key import Agreed
    from closeranks.collectives.dispatch.init_state import Family
    from closeranks.collectives.selection.chooser import Chooser
    from closeranks.comms.topology.topology import Link, Topology


class Facts(NamedTuple):
    """What one member tells the others, newcomers above all.

    Attributes
    ----------
    epoch : int
        That begins.
    links : mapping of str to Link
        Of each level.
    given : Topology or None
        Of all seats, if the program had one.
    known : dict of Agreed to str
        What was fastest as far as it knows.
    chooser : mapping of str to object
        How it chooses, without what it has tried.
    sat : str
        Where its ranks sit that choose so, see `shape`.
    family : mapping of str to object
        Options that newcomers cannot find out alone.
    newcomers : dict of int to int
        See `Family`.
    failed, before, came
        See `Family`.
    """

    epoch: int
    links: Mapping[str, Link]
    given: Topology | None
    known: dict[Agreed, str]
    chooser: Mapping[str, Any]
    sat: str
    family: Mapping[str, Any]
    newcomers: dict[int, int]
    failed: int
    before: tuple[int, ...]
    came: set[int]

    @classmethod
    def of(cls, family: Family, chooser: Chooser, epoch: int) -> Facts:
        """Tell what this member knows.  Local.

        Parameters
        ----------
        family : Family
            As it was in the epoch before.
        chooser : Chooser
            Of its first communicator.
        epoch : int
            That begins.

        Returns
        -------
        Facts
            To be sent.
        """
        return cls(
            epoch,
            dict(family.world.topology.links),
            family.given,
            chooser.best_known,
            chooser.numbers,
            shape(chooser.topology),
            family.abilities,
            family.newcomers,
            family.failed,
            family.before,
            family.came,
        )
