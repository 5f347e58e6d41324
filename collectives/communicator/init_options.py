"""Options of `init`: checked on one rank, with what the environment adds.

No option is compared between ranks here; `init` does that with
`InitOptions.in_common`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from numbers import Integral, Real
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any, Final

import numpy as np

from closeranks.collectives.engine.fault_injection import Fault, schedule
from closeranks.collectives.faults.respawn import program
from closeranks.collectives.selection.rules import read_rules
from closeranks.comms import argument
from closeranks.comms.mpi import ulfm
from closeranks.comms.settings import refuse_unknown, setting, switch
from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError, Unavailable, UsageError

#: How long a rank may be stopped before it is ended, in seconds.
_SILENCE_S: Final = 0.5
#: Options that may differ from rank to rank.
_OWN: Final = ("tuning", "faults", "remember")
_ON_FAILURE: Final = ("raise", "shrink", "replace")


@dataclass(frozen=True)
class InitOptions:
    """The options that a rank opens a communicator with; made by `parse`.

    Attributes
    ----------
    topology : Topology or None
        The caller's; None: it is discovered.
    on_failure : str
        "raise", "shrink" or "replace".
    spares : int
        How many ranks wait.
    recruits : bool
        Whether new processes are started for the seats of dead ranks.
    program : str
        The command line of a new process, if the caller asks for new processes.
    timeout_s : float or None
        Deadline of collectives, seconds.
    recovery_timeout_s : float
        Deadline of a recovery, seconds.
    tuning : path, mapping or None
        As given, or as the environment says.
    deterministic : bool
        As given.
    check : bool
        As given, or as the environment says.
    faults : tuple of Fault or None
        Faults that are injected; None: injection is not allowed.
    remember : bool
        Whether findings of trials are read and written, if this is rank 0.
    """

    topology: Topology | None
    on_failure: str
    spares: int
    recruits: bool
    program: str
    timeout_s: float | None
    recovery_timeout_s: float
    tuning: str | Path | Mapping[str, Any] | None
    deterministic: bool
    check: bool
    faults: tuple[Fault, ...] | None
    remember: bool

    @classmethod
    def parse(
        cls,
        *,
        ranks: int,
        whole: bool,
        in_order: bool,
        topology: Topology | None,
        on_failure: str,
        spares: int,
        recruits: bool | None,
        timeout_s: float | None,
        recovery_timeout_s: float,
        tuning: str | Path | Mapping[str, Any] | None,
        deterministic: bool,
        check: bool | None,
        faults: bool,
    ) -> InitOptions:
        """Check the arguments of `init`, and add what the environment says.

        Local.

        Parameters
        ----------
        ranks : int
            How many open the communicator.
        whole, in_order : bool
            Whether all ranks of the job open the communicator, and in their order.
        topology, on_failure, spares, recruits, timeout_s, recovery_timeout_s
            See `closeranks.collectives.communicator.initialization.init`.
        tuning, deterministic, check, faults
            See there.

        Returns
        -------
        InitOptions
            The options of this rank.

        Raises
        ------
        UsageError, TopologyError, Unavailable
            If an option cannot be used, or a ``CLOSERANKS_`` setting is unknown.
        """
        _check_failure(on_failure)
        _check_times(timeout_s, recovery_timeout_s)
        for name, flag in (("recruits", recruits), ("deterministic", deterministic),
                           ("check", check), ("faults", faults)):  # fmt: skip
            if flag is not None:
                argument.instance("init", name, flag, (Integral, np.bool_), "give True or False")
        refuse_unknown()
        wait = _spares(spares, on_failure, ranks, whole=whole)
        return cls(
            topology=_topology(topology, ranks - wait),
            on_failure=on_failure,
            spares=wait,
            recruits=_recruits(recruits, on_failure, whole=whole and in_order),
            program=ascii(program()) if recruits else "",
            timeout_s=None if timeout_s is None else float(timeout_s),
            recovery_timeout_s=float(recovery_timeout_s),
            tuning=_tuning(setting("TUNING") if tuning is None else tuning),
            deterministic=bool(deterministic),
            check=switch("CHECK") if check is None else bool(check),
            faults=_faults(faults, ranks - wait if whole else None),
            remember=switch("REMEMBER", unset=True),
        )

    @property
    def silence_s(self) -> float:
        """How long a rank may be stopped before it is ended, in seconds."""
        return _silence_s(self.timeout_s)

    def in_common(self) -> str:
        """Say in words which options all ranks must give alike.

        Local.

        Returns
        -------
        str
            Faults are left out, since each rank has its own.  So are tables of
            `closeranks tune`, since rank 0 reads them.
        """
        said: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        said["topology"] = _digest(self.topology)
        if isinstance(self.tuning, Mapping) and "format" not in self.tuning:
            said["rules"] = read_rules(self.tuning)
        return ", ".join(f"{name}={said[name]}" for name in said if name not in _OWN)


def _topology(given: Topology | None, ranks: int) -> Topology | None:
    """Refuse a topology of another number of ranks than the communicator has."""
    if given is None:
        return None
    argument.instance("init", "topology", given, Topology, "give a closeranks.Topology, or none")
    if given.size != ranks and setting("JOINS") is None:
        raise TopologyError("init", f"a topology of {given.size} ranks for {ranks}",
                            "pass topology.restrict(ranks), or none")  # fmt: skip
    return given


def _digest(topology: Topology | None) -> str:
    """Say in few words what tells this topology from others."""
    if topology is None:
        return "none"
    digest = blake2b(topology.to_json().encode(), digest_size=4).hexdigest()
    return f"{topology.size} ranks, digest {digest}"


def _tuning(
    given: str | Path | Mapping[str, Any] | None,
) -> str | Path | Mapping[str, Any] | None:
    """Refuse what is no table, and wrong rules; rank 0 reads files later."""
    if given is not None:
        remedy = "give a path, a mapping, or none"
        argument.instance("init", "tuning", given, (str, os.PathLike, Mapping), remedy)
    if isinstance(given, Mapping) and "format" not in given:
        read_rules(given)
    return given


def _check_failure(on_failure: str) -> None:
    """Refuse an unknown word, and a recovery that this job cannot have."""
    if not isinstance(on_failure, str) or on_failure not in _ON_FAILURE:
        raise UsageError(
            "init", f"on_failure={argument.shown(on_failure)}", f"one of {', '.join(_ON_FAILURE)}"
        )
    if on_failure != "raise" and not ulfm.is_on():
        raise Unavailable(f"recovery (on_failure={on_failure!r}) in a job that ends with its first"
                          " dead rank", "start it by closeranks run --faults")  # fmt: skip


def _check_times(timeout_s: float | None, recovery_timeout_s: float) -> None:
    """Refuse deadlines that no call can keep, or that contradict each other."""
    argument.check_timeout("init", timeout_s)
    silence_s = _silence_s(timeout_s)
    given: object = recovery_timeout_s  # whatever its type says
    if not isinstance(given, Real) or not 0 < recovery_timeout_s < TIMEOUT_MAX:
        raise UsageError("init", f"recovery_timeout_s is {recovery_timeout_s!r}",
                         f"give more than {2 * silence_s:g} seconds")  # fmt: skip
    if recovery_timeout_s <= 2 * silence_s:
        raise UsageError("init", f"recovery_timeout_s is {recovery_timeout_s:g}, and a rank that is"
                         f" stopped in a recovery is noticed after {silence_s:g} s",
                         f"give more than {2 * silence_s:g} seconds")  # fmt: skip


def _silence_s(timeout_s: float | None) -> float:
    return _SILENCE_S if timeout_s is None else min(_SILENCE_S, timeout_s / 2)


def _spares(asked: int, on_failure: str, ranks: int, *, whole: bool) -> int:
    """Give the number of spares: the caller's, or that of ``run --spares``."""
    said = f"spares={argument.shown(asked)}"
    given: object = asked  # whatever its type says
    if not isinstance(given, Integral):
        raise UsageError("init", said, "give a number of ranks")
    if not asked and whole and (text := setting("SPARES")):
        asked = int(text) if text.isdigit() else -1
        said = f"CLOSERANKS_SPARES={text} (run --spares)"
    if asked < 0:
        raise UsageError("init", said, "give a number of ranks")
    if asked and on_failure != "replace":
        raise UsageError("init", f"{said} and on_failure={on_failure!r}",
                         "use on_failure='replace', or no spares")  # fmt: skip
    if asked >= ranks and setting("JOINS") is None:
        raise UsageError("init", f"{said} of {ranks} ranks", "leave one to work")
    return asked


def _recruits(asked: bool | None, on_failure: str, *, whole: bool) -> bool:
    """Say whether new processes are started where no spare is left."""
    if not asked:
        return asked is None and on_failure == "replace" and switch("RECRUITS") and whole
    if on_failure != "replace":
        raise UsageError("init", f"recruits and on_failure={on_failure!r}",
                         "use on_failure='replace'")  # fmt: skip
    if not switch("RECRUITS"):
        raise Unavailable("new processes in the place of the dead",
                          "start the job on one node by closeranks run --faults")  # fmt: skip
    return True


def _faults(allowed: bool, seats: int | None) -> tuple[Fault, ...] | None:
    """Read the faults that are injected; None: injection is not allowed."""
    text = setting("FAULTS")
    if text and not (allowed or ulfm.is_on()):
        raise UsageError("CLOSERANKS_FAULTS", f"{text!r} where faults are not allowed",
                         "unset it, or pass faults=True, or closeranks run --faults")  # fmt: skip
    if not text:
        return () if allowed else None
    return schedule(text, seats if setting("JOINS") is None else None)
