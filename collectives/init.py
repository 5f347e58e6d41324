"""Open a communicator: find out where the ranks sit, and what the library can do."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mpi4py import MPI

from closeranks.collectives import native
from closeranks.collectives.agreement import agree_equal
from closeranks.collectives.calibrate import calibrate
from closeranks.collectives.choose import Chooser
from closeranks.collectives.communicator import Communicator
from closeranks.collectives.family import Family, check_timeout
from closeranks.collectives.injection import Fault, Injection, schedule
from closeranks.collectives.origin import fitting
from closeranks.collectives.recovery import Recovery
from closeranks.collectives.recruits import recruited
from closeranks.collectives.rules import Rules
from closeranks.collectives.spares import Crew
from closeranks.collectives.tuned import Tuned, together
from closeranks.collectives.tuning import tuning as read_tuning
from closeranks.collectives.world import World
from closeranks.comms import ballot, cuda_aware, device_interface, ulfm, warden
from closeranks.comms.discover import discover
from closeranks.comms.last_resort import LastResort, age_s
from closeranks.comms.mates import mates, pid_namespace
from closeranks.comms.measure import quick
from closeranks.comms.neighbours import neighbours
from closeranks.comms.settings import refuse_unknown, setting, switch
from closeranks.comms.translate import ranks_in
from closeranks.errors import Disagreement, Error, TopologyError, Unavailable, UsageError

if TYPE_CHECKING:
    from closeranks.comms.topology import Topology

#: How long a rank may be stopped before it is ended, in seconds.
_SILENCE_S: Final = 0.5
_ON_FAILURE = ("raise", "shrink", "replace")


def init(
    comm: MPI.Intracomm | None = None,
    *,
    topology: Topology | None = None,
    on_failure: str = "raise",
    spares: int = 0,
    recruits: bool | None = None,
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
        "raise": calls raise `PeerLost`; "shrink": `Communicator.attempts` goes on
        with those who are left; "replace": with spares in the seats of the dead,
        then with new processes.
    spares : int
        How many of the last ranks wait in here, until they are needed or the job
        ends: then they leave by SystemExit.  Default: as ``closeranks run
        --spares`` says.
    recruits : bool, optional
        Whether processes that run the same command line are started in the
        place of the dead where no spare is left.  Default: where ``closeranks
        run --faults`` can, on one node, with all ranks of the job in ``comm``.
    timeout_s : float, optional
        Deadline of every collective, seconds; then `PeerLate`.
    recovery_timeout_s : float
        Deadline of a recovery, seconds; above 1, for ranks that are stopped in it.
        New processes get twice the time more that this one has taken to come here.
    tuning : path or mapping, optional
        See `closeranks.collectives.tuning`; default ``CLOSERANKS_TUNING``.  Of a
        table of `closeranks tune` a warning on rank 0 names what does not hold
        here; the links of ``topology`` go before its numbers.
    deterministic : bool
        Leave nothing to the library: the same bits in every run.
    check : bool, optional
        Compare arguments at every call; default ``CLOSERANKS_CHECK``.
    faults : bool
        Let ranks fail on purpose, where ``CLOSERANKS_FAULTS`` or
        `Injection.fail_at` of ``comm.faults`` says so; also in jobs started by
        ``closeranks run --faults`` that set it.

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
    _check_failure(on_failure)
    _check_times(timeout_s, recovery_timeout_s)
    refuse_unknown()
    is_checked = switch("CHECK") if check is None else bool(check)
    options = _Options(timeout_s, deterministic, is_checked, tuning, _faults(faults))
    given = MPI.COMM_WORLD if comm is None else comm
    starts = _recruits(recruits, on_failure, given)
    start_s = 0.0
    if ulfm.is_on():
        _guard(given, timeout_s)
        start_s = age_s()  # the slowest rank's, for by now all are here
    with _arrival(recovery_timeout_s + 2 * start_s):
        plain, crew = _staffed(given, _spares(spares, on_failure), starts)
        if crew is not None and crew.is_spare:
            opened, family = _joined(crew, options)
        else:
            opened, family = _open(plain, topology, options)
    if crew is not None:
        family.crew = family.world.own(crew)
        atexit.register(crew.end)
    family.recovery = Recovery(opened, family, on_failure, recovery_timeout_s, start_s)
    world = family.world
    ballot.stand(world.rank, world.epoch, family.group, world.size)
    if family.joined:
        family.recovery.fill()  # the others do so, too
    return opened


class _Options(NamedTuple):
    """What the caller asked for, as far as it can be had."""

    timeout_s: float | None
    deterministic: bool
    check: bool
    tuning: str | Path | Mapping[str, Any] | None
    faults: tuple[Fault, ...] | None


def _spares(asked: int, on_failure: str) -> int:
    """Say how many ranks wait, as asked for here or by ``closeranks run --spares``."""
    text = setting("SPARES") or "0"
    if not text.isdigit() or asked < 0:
        raise UsageError("init", f"spares={asked}, CLOSERANKS_SPARES={text!r}", "a number")
    spares = asked or int(text)
    if spares and on_failure != "replace":
        raise UsageError("init", f"{spares} spares and on_failure={on_failure!r}",
                         "use on_failure='replace'")  # fmt: skip
    return spares


def _recruits(asked: bool | None, on_failure: str, comm: MPI.Intracomm) -> bool:
    """Say whether new processes are started where no spare is left."""
    if not asked:
        whole = MPI.Comm.Compare(comm, MPI.COMM_WORLD) in (MPI.IDENT, MPI.CONGRUENT)
        return asked is None and on_failure == "replace" and switch("RECRUITS") and whole
    if on_failure != "replace":
        raise UsageError("init", f"recruits and on_failure={on_failure!r}",
                         "use on_failure='replace'")  # fmt: skip
    if not switch("RECRUITS"):
        raise Unavailable("new processes in the place of the dead",
                          "start the job on one node by closeranks run --faults")  # fmt: skip
    return True


def _arrival(limit_s: float) -> AbstractContextManager[object]:
    """Let a process that was started for a vacant seat end if it comes in vain."""
    if setting("JOINS") is None:
        return nullcontext()
    return LastResort(limit_s, "closeranks: a new process is not awaited any more; it ends")


def _staffed(comm: MPI.Intracomm, spares: int, recruits: bool) -> tuple[MPI.Intracomm, Crew | None]:
    """Set the spares apart; gives the members' communicator.  Collective."""
    found = recruited()
    if found is not None:
        whole, new, seats = found
        return whole, Crew(whole, new, seats=seats, recruits=recruits)
    plain = MPI.Intracomm(comm).Dup()
    if not spares:
        return plain, Crew(plain, 0, recruits=True) if recruits else None
    if spares >= plain.size:
        raise UsageError("init", f"{spares} spares of {plain.size} ranks", "leave one to work")
    crew = Crew(plain, spares, recruits=recruits)
    members = plain.Split(int(crew.is_spare), plain.rank)
    assert isinstance(members, MPI.Intracomm)
    return members, crew


def _joined(crew: Crew, options: _Options) -> tuple[Communicator, Family]:
    """Wait until a seat is free, and take it; leaves when the job is over."""
    seat = crew.wait_for_seat()
    world, facts = seat.world, seat.facts
    assert world is not None
    assert seat.seated is not None
    family = Family(
        timeout_s=options.timeout_s,
        deterministic=options.deterministic,
        check=options.check,
        faults=None if options.faults is None else Injection(world.seats[world.rank], ()),
        **facts.family,
    )
    family.world, family.joined = world, True
    family.seats = crew.seats
    family.seat_newcomers(facts.newcomers, seat.seated.joined)
    family.before, family.came = facts.before, facts.came | set(seat.seated.joined)
    family.born, family.synchronized, family.failed = world.epoch, False, facts.failed
    if options.timeout_s is not None:
        world.attendance.open()
    chooser = Chooser(world.topology, **facts.chooser)
    opened = Communicator.adopt(
        world.comm, family, world.topology, chooser=chooser, world=world, seats=world.seats
    )
    return opened, family


def _open(
    plain: MPI.Intracomm, topology: Topology | None, options: _Options
) -> tuple[Communicator, Family]:
    """Make the communicator; collective."""
    timeout_s, deterministic, check, tuning, faults = options
    if faults is not None and plain.rank == 0:
        sys.stderr.write(f"closeranks: faults on purpose: {setting('FAULTS') or 'as they come'}\n")
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
        group=max(0, ranks_in(plain, MPI.COMM_WORLD)[0]),
        faults=None if faults is None else Injection(plain.rank, faults),
    )
    family.seats = plain.size
    family.world = World(0, plain, found)
    if timeout_s is not None:
        family.world.arm()
    chooser = _chooser(plain, found, tuned, deterministic=deterministic)
    seats = tuple(range(plain.size))
    opened = Communicator.adopt(
        plain, family, found, chooser=chooser, world=family.world, seats=seats
    )
    if ulfm.is_on():  # else who is quick could give up while others still open theirs
        ulfm.agree(plain, 1)
    return opened, family


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


def _guard(everybody: MPI.Intracomm, timeout_s: float | None) -> None:
    """Watch over the processes of this node: who ends, who stands still.  Collective."""
    node = neighbours(everybody)
    mates().keep(node)
    places = node.allgather((pid_namespace(), os.getpid()))
    pids = [pid for numbering, pid in places if numbering == pid_namespace()]
    if pids[0] == os.getpid():
        warden.start(pids, _silence_s(timeout_s))
    node.Free()


def _silence_s(timeout_s: float | None) -> float:
    return _SILENCE_S if timeout_s is None else min(_SILENCE_S, timeout_s / 2)


def _faults(allowed: bool) -> tuple[Fault, ...] | None:
    """Read what is to go wrong on purpose; None: nothing is."""
    text = setting("FAULTS")
    if text and not (allowed or ulfm.is_on()):
        raise UsageError("CLOSERANKS_FAULTS", f"{text!r} where faults are not allowed",
                         "unset it, or pass faults=True, or closeranks run --faults")  # fmt: skip
    return schedule(text or "") if allowed or text else None


def _check_times(timeout_s: float | None, recovery_timeout_s: float) -> None:
    """Refuse deadlines that nobody can keep, or that contradict each other."""
    check_timeout("init", timeout_s)
    check_timeout("init", recovery_timeout_s)
    silence_s = _silence_s(timeout_s)
    if recovery_timeout_s <= 2 * silence_s:
        raise UsageError("init", f"recovery_timeout_s is {recovery_timeout_s:g}, and a rank that is"
                         f" stopped in a recovery is noticed after {silence_s:g} s",
                         f"give more than {2 * silence_s:g} seconds")  # fmt: skip


def _check_failure(on_failure: str) -> None:
    """Refuse what this job cannot do."""
    if on_failure not in _ON_FAILURE:
        raise UsageError("init", f"on_failure={on_failure!r}", f"one of {', '.join(_ON_FAILURE)}")
    if on_failure != "raise" and not ulfm.is_on():
        raise Unavailable(f"recovery (on_failure={on_failure!r}) in a job that ends with its first"
                          " dead rank", "start it by closeranks run --faults")  # fmt: skip


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
    most = ulfm.BRIEF_BYTES if ulfm.is_on() else None
    if deterministic or plain.size == 1:
        allowed = not deterministic
        return Chooser(
            topology, speed=speed, allow_native=allowed, native_bytes=most, winners=winners
        )
    native = None if tuned is None else tuned.native
    if native is None or speed is None:
        native, measured = calibrate(plain)
        speed = speed or measured
    return Chooser(
        topology, native=native, speed=speed, trials=True, native_bytes=most, winners=winners
    )
