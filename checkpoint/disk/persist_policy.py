"""What of a job's saves goes to disk, and where."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from closeranks.checkpoint.control.save_options import place_of
from closeranks.comms.numeric_argument import whole
from closeranks.errors import UsageError


@dataclass(frozen=True)
class Persist:
    """What is asked for.

    Attributes
    ----------
    name : str
        Of the checkpoints, without that of the job.
    folder : Path
        Where they are.
    every : int
        How many saves are made for each that is written.
    keep : int
        Saves that stay on disk.
    """

    name: str
    folder: Path
    every: int
    keep: int

    @classmethod
    def asked(
        cls, name: str, place: str | os.PathLike[str] | None, every: int | None, keep: int
    ) -> Persist | None:
        """Check what a caller asks for; None if that is nothing.

        Local.

        Parameters
        ----------
        name : str
            Of the checkpoints.
        place : path or None
            The folder in which theirs is.
        every : int or None
            How many saves are made for each that is written.
        keep : int
            Saves that stay on disk.

        Raises
        ------
        UsageError
            If it makes no sense.
        """
        found = place_of("persist", place)
        count = 1 if every is None else whole("Checkpointer", "persist_every", every, 1)
        if found is None:
            if every is not None:
                raise UsageError("Checkpointer", f"persist_every={every!r} and no persist=",
                                 "give a folder, too")  # fmt: skip
            return None
        return cls(name, found.absolute() / name, count, keep)
