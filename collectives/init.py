"""Open a communicator: find out where the ranks sit, and what the library can do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from closeranks.collectives import native
from closeranks.collectives.agreement import agree_equal
from closeranks.collectives.calibrate import calibrate
from closeranks.collectives.choose import Chooser
from closeranks.collectives.communicator import Communicator
from closeranks.collectives.family import Family, check_timeout
from closeranks.collectives.origin import fitting
from closeranks.collectives.rules import Rules
from closeranks.collectives.tuned import Tuned, together
from closeranks.collectives.tuning import tuning as read_tuning
from closeranks.collectives.world import World
from closeranks.comms import cuda_aware, device_interface
from closeranks.comms.discover import discover
from closeranks.comms.measure import quick
from closeranks.comms.settings import refuse_unknown, setting, switch
from closeranks.errors import Disagreement, Error, TopologyError, Unavailable, UsageError

if TYPE_CHECKING:
    from closeranks.comms.topology import Topology

_ON_FAILURE = ("raise", "shrink", "replace")


def init(
    comm: MPI.Intracomm | None = None,
    *,
    topology: Topology | None = None,
    on_failure: str = "raise",
    spares: int = 0,
    timeout_s: float | None = None,
    recovery_timeout_s: float = 30,
    tuning: str | Path | Mapping[str, Any] | None = None,
    deterministic: bool = False,
    check: bool | None = None,
    faults: bool = False,
) -> Communicator:
    """Open a communicator that knows the hierarchy of its ranks.

    Collective over ``comm``; some tens of milliseconds.  A context manager.

    Parameters
    ----------
    comm : MPI.Intracomm, default MPI.COMM_WORLD
        The ranks; it is duplicated.
    topology : Topology, optional
        Where they sit; discovered and measured if not given.
    on_failure : str
        "raise"; "shrink" and "replace" are not available yet.
    spares : int
        0; spare ranks are not available yet.
    timeout_s : float, optional
        Deadline of every collective, seconds; then `PeerLate`.
    recovery_timeout_s : float
        Deadline of a recovery, seconds.
    tuning : path or mapping, optional
        See `closeranks.collectives.tuning`; default ``CLOSERANKS_TUNING``.  Of a
        table of `closeranks tune` a warning on rank 0 names what does not hold
        here; the links of ``topology`` go before its numbers.
    deterministic : bool
        Leave nothing to the library: the same bits in every run.
    check : bool, optional
        Compare arguments at every call; default ``CLOSERANKS_CHECK``.
    faults : bool
        False; fault injection is not available yet.

    Returns
    -------
    Communicator
        The ranks of ``comm``.

    Raises
    ------
    UsageError, TopologyError, Unavailable
        If an option cannot be used, or a ``CLOSERANKS_`` setting is unknown.
    Disagreement
        On every rank, if tuning files or, with ``check``, options differ.
    """
    _refuse_later_parts(on_failure, spares, faults)
    check_timeout("init", timeout_s)
    check_timeout("init", recovery_timeout_s)
    refuse_unknown()
    is_checked = switch("CHECK") if check is None else bool(check)
    options = _Options(timeout_s, deterministic, is_checked, tuning)
    return _open(MPI.COMM_WORLD if comm is None else comm, topology, options)


class _Options(NamedTuple):
    """What the caller asked for, as far as it can be had."""

    timeout_s: float | None
    deterministic: bool
    check: bool
    tuning: str | Path | Mapping[str, Any] | None


def _open(comm: MPI.Intracomm, topology: Topology | None, options: _Options) -> Communicator:
    """Make the communicator; collective."""
    timeout_s, deterministic, check, tuning = options
    plain = MPI.Intracomm(comm).Dup()
    if check:
        agree_equal(plain, "init", f"timeout_s={timeout_s}, deterministic={deterministic}")
    table = read_tuning(_shared_tuning(plain, setting("TUNING") if tuning is None else tuning))
    placed = _placed(plain, topology)
    tuned = fitting(plain, table, placed)
    is_given = topology is not None
    found = _linked(plain, placed, tuned, is_given=is_given, measures=not deterministic)
    can = _abilities(plain)
    family = Family(
        timeout_s=timeout_s,
        deterministic=deterministic,
        check=check,
        tuning=table if isinstance(table, Rules) else Rules(),
        threaded=can.threaded,
        devices=can.devices,
        reaches_devices=can.reaches_devices,
    )
    family.world = World(0, plain, found)
    chooser = _chooser(plain, found, tuned, deterministic=deterministic)
    seats = tuple(range(plain.size))
    return Communicator.adopt(
        plain, family, found, chooser=chooser, world=family.world, seats=seats
    )


class _Abilities(NamedTuple):
    """What all ranks together can do; see `Family`."""

    threaded: bool
    devices: bool
    reaches_devices: bool


def _abilities(plain: MPI.Intracomm) -> _Abilities:
    """Agree on what depends on how the ranks were started, and where.  Collective."""
    threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    devices = device_interface.are_there()
    reaches = devices and cuda_aware.reaches_devices()
    said = [float(not threaded), float(devices), float(not reaches)]
    lacks_threads, has_devices, lacks_reach = native.agreed_max(plain, said)
    return _Abilities(not lacks_threads, bool(has_devices), not lacks_reach)


def _refuse_later_parts(on_failure: str, spares: int, faults: bool) -> None:
    """Refuse what this version cannot do, by name."""
    if on_failure not in _ON_FAILURE:
        raise UsageError("init", f"on_failure={on_failure!r}", f"one of {', '.join(_ON_FAILURE)}")
    if on_failure != "raise":
        raise Unavailable(f"recovery (on_failure={on_failure!r})", "use on_failure='raise'")
    if spares:
        raise Unavailable(f"spare ranks (spares={spares})", "use spares=0")
    if faults:
        raise Unavailable("fault injection (faults=True)", "use faults=False")


def _shared_tuning(plain: MPI.Intracomm, given: Any) -> Any:
    """Let rank 0 read a file or a measured table, so that all ranks have the same."""
    rules = given is None or (isinstance(given, Mapping) and "format" not in given)
    most, least = native.agreed_max(plain, [float(rules), -float(rules)])
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


def _placed(plain: MPI.Intracomm, topology: Topology | None) -> Topology:
    """Give the topology: the caller's, or a discovered one."""
    if topology is None:
        return discover(plain)
    if topology.size != plain.size:
        raise TopologyError("init", f"a topology of {topology.size} ranks for {plain.size}",
                            "pass topology.restrict(ranks), or none")  # fmt: skip
    return topology


def _linked(
    plain: MPI.Intracomm,
    topology: Topology,
    tuned: Tuned | None,
    *,
    is_given: bool,
    measures: bool,
) -> Topology:
    """Give the topology its links: the caller's, a table's, or quickly measured ones."""
    known = {} if tuned is None else {name: level.link for name, level in tuned.levels.items()}
    if is_given:
        known = {name: k for name, k in known.items() if topology.links[name].source == "default"}
    elif measures and plain.size > 1 and not set(together(topology)) <= set(known):
        topology = quick(plain, topology)
    return topology.with_links(known) if known else topology


def _chooser(
    plain: MPI.Intracomm, topology: Topology, tuned: Tuned | None, *, deterministic: bool
) -> Chooser:
    """Make the chooser; a deterministic one depends on nothing measured now."""
    speed = None if tuned is None else tuned.speed
    winners = None if tuned is None else tuned.winners
    if deterministic or plain.size == 1:
        allowed = not deterministic
        return Chooser(topology, speed=speed, allow_native=allowed, winners=winners)
    native = None if tuned is None else tuned.native
    if native is None or speed is None:
        native, measured = calibrate(plain)
        speed = speed or measured
    return Chooser(topology, native=native, speed=speed, trials=True, winners=winners)
