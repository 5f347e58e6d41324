"""What the caller of `init` asks for, as far as this job can have it.

Open a communicator: find out where the ranks sit, and what the library can do.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from hashlib import blake2b
from numbers import Integral, Real
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.collectives.arguments import native_handover as native
from closeranks.collectives.communicator.communicator import Communicator
from closeranks.collectives.dispatch.argument_check import agree_equal
from closeranks.collectives.engine import interpreter
from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.engine.error_translation import blaming, interruptible, leaving, opening
from closeranks.collectives.engine.fault_injection import Fault, Injection, schedule
from closeranks.collectives.engine.init_state import Family, alike
from closeranks.collectives.faults.recovery import Recovery
from closeranks.collectives.faults.respawn import program, recruited
from closeranks.collectives.faults.spares import SparePool
from closeranks.collectives.selection.agreed_tuning import agreed_tuning
from closeranks.collectives.selection.chooser import Chooser, Rules, read_rules
from closeranks.collectives.selection.planner import calibrate
from closeranks.collectives.selection.tuning_origin import fitting
from closeranks.collectives.selection.tuning_table import Tuned, together
from closeranks.collectives.selection.tuning_table import tuning as read_tuning
from closeranks.comms import argument
from closeranks.comms.discovery.discovery import discover
from closeranks.comms.discovery.link_survey import quick
from closeranks.comms.exit import exit_report, forked_child
from closeranks.comms.exit.hard_deadline import HardDeadline, process_age_s
from closeranks.comms.gpu import array_interface, cuda_aware
from closeranks.comms.liveness import watchdog
from closeranks.comms.liveness.collective_creation import all_or_none
from closeranks.comms.liveness.failure_notices import Notices
from closeranks.comms.liveness.peer_watch import peers
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.finalization import before_finalize
from closeranks.comms.mpi.mpi_handle import WORLD, ranks_in
from closeranks.comms.mpi.node_peers import split_by_node
from closeranks.comms.settings import refuse_unknown, setting, switch
from closeranks.comms.topology.topology import Topology
from closeranks.errors import Revoked, TopologyError, Unavailable, UsageError

if TYPE_CHECKING:
    from closeranks.comms.topology.topology import Topology


#: How long a rank may be stopped before it is ended, in seconds.
_SILENCE_S: Final = 0.5
#: What ranks may ask for each on its own.
_OWN: Final = ("tuning", "faults")
_ON_FAILURE: Final = ("raise", "shrink", "replace")


class InitOptions(NamedTuple):
    """What ranks open a communicator with, see `initialization`.

    Attributes
    ----------
    topology : str
        What tells the caller's topologies apart; "none" if there is none.
    on_failure : str
        "raise", "shrink" or "replace".
    spares : int
        How many ranks wait.
    recruits : bool
        Whether new processes are started in the place of the dead.
    program : str
        What they run, where they were asked for.
    timeout_s : float or None
        Deadline of collectives, seconds.
    recovery_timeout_s : float
        Deadline of a recovery, seconds.
    tuning : path, mapping or None
        As given.
    deterministic, check : bool
        As given, or as the environment says.
    faults : tuple of Fault or None
        What goes wrong on purpose; None: nothing may.
    """

    topology: str
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

    @property
    def silence_s(self) -> float:
        """How long a rank may be stopped before it is ended, in seconds."""
        return _silence_s(self.timeout_s)

    def in_common(self) -> str:
        """Say in words what all ranks have to ask for alike.

        Local.

        Returns
        -------
        str
            Of faults, and of tables of `closeranks tune`, nothing: they are each
            rank's own, and rank 0's.
        """
        told: dict[str, Any] = self._asdict()
        if isinstance(self.tuning, Mapping) and "format" not in self.tuning:
            told["rules"] = read_rules(self.tuning)
        return ", ".join(f"{name}={told[name]}" for name in told if name not in _OWN)


def options(
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
    """Check what the caller asks for, and add what the environment says.

    Local.

    Parameters
    ----------
    ranks : int
        How many open the communicator.
    whole, in_order : bool
        Whether all ranks of the job open the communicator, and in their order.
    topology, on_failure, spares, recruits, timeout_s, recovery_timeout_s
        See `closeranks.collectives.communicator.initialization`.
    tuning, deterministic, check, faults
        See there.

    Returns
    -------
    InitOptions
        What this job can have.

    Raises
    ------
    UsageError, Unavailable
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
    return InitOptions(
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
    )


def _topology(given: Topology | None, ranks: int) -> str:
    """Check what the caller says of the ranks, which all have to say alike."""
    if given is None:
        return "none"
    argument.instance("init", "topology", given, Topology, "give a closeranks.Topology, or none")
    if given.size != ranks and setting("JOINS") is None:
        raise TopologyError("init", f"a topology of {given.size} ranks for {ranks}",
                            "pass topology.restrict(ranks), or none")  # fmt: skip
    digest = blake2b(given.to_json().encode(), digest_size=4).hexdigest()
    return f"{given.size} ranks, digest {digest}"


def _tuning(
    given: str | Path | Mapping[str, Any] | None,
) -> str | Path | Mapping[str, Any] | None:
    """Check what kind of table is given, and rules; files are read by one rank only."""
    if given is not None:
        remedy = "give a path, a mapping, or none"
        argument.instance("init", "tuning", given, (str, os.PathLike, Mapping), remedy)
    if isinstance(given, Mapping) and "format" not in given:
        read_rules(given)
    return given


def _check_failure(on_failure: str) -> None:
    """Refuse what this job cannot do."""
    if not isinstance(on_failure, str) or on_failure not in _ON_FAILURE:
        raise UsageError(
            "init", f"on_failure={argument.shown(on_failure)}", f"one of {', '.join(_ON_FAILURE)}"
        )
    if on_failure != "raise" and not ulfm.is_on():
        raise Unavailable(f"recovery (on_failure={on_failure!r}) in a job that ends with its first"
                          " dead rank", "start it by closeranks run --faults")  # fmt: skip


def _check_times(timeout_s: float | None, recovery_timeout_s: float) -> None:
    """Refuse deadlines that nobody can keep, or that contradict each other."""
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
    """Say how many ranks wait, as asked for here or by ``closeranks run --spares``."""
    said = f"spares={argument.shown(asked)}"
    given: object = asked  # whatever its type says
    if not isinstance(given, Integral):
        raise UsageError("init", said, "give a number of ranks")
    if not asked and whole and (text := setting("SPARES")):
        asked, said = (
            int(text) if text.isdigit() else -1,
            f"CLOSERANKS_SPARES={text} (run --spares)",
        )
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
    """Read what is to go wrong on purpose; None: nothing is."""
    text = setting("FAULTS")
    if text and not (allowed or ulfm.is_on()):
        raise UsageError("CLOSERANKS_FAULTS", f"{text!r} where faults are not allowed",
                         "unset it, or pass faults=True, or closeranks run --faults")  # fmt: skip
    if not text:
        return () if allowed else None
    return schedule(text, seats if setting("JOINS") is None else None)


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
        Where they sit, newcomers too; discovered and measured if not given.
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
        See `closeranks.collectives.selection.tuning_table`; default
        ``CLOSERANKS_TUNING``.  Of a table of `closeranks tune` a warning on rank 0
        names what does not hold here; the links of ``topology`` go before its
        numbers.
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
        If an option cannot be used, or a ``CLOSERANKS_`` setting is unknown; where
        that is so on some ranks only, the others raise `Revoked`.
    Disagreement
        On every rank, if tuning files, options or recruits' programs differ.
    PeerLost, Revoked
        On every rank, if one dies or fails meanwhile, in a job that survives it: a
        first world is of all ranks or none.
    """
    forked_child.refuse_in_child("init")
    given = MPI.COMM_WORLD if comm is None else comm
    argument.instance("init", "comm", given, MPI.Intracomm, "give an MPI.Intracomm, or none")
    if given == MPI.COMM_NULL:
        raise UsageError("init", "comm is MPI.COMM_NULL", "call it on the ranks of a communicator")
    likeness = MPI.Comm.Compare(given, WORLD)
    ask = partial(
        options,
        ranks=given.size,
        whole=likeness != MPI.UNEQUAL,
        in_order=likeness != MPI.SIMILAR,
        topology=topology,
        on_failure=on_failure,
        spares=spares,
        recruits=recruits,
        timeout_s=timeout_s,
        recovery_timeout_s=recovery_timeout_s,
        tuning=tuning,
        deterministic=deterministic,
        check=check,
        faults=faults,
    )
    with opening(given):
        with leaving(), blaming("init", given):
            wanted = _agreed(MPI.Intracomm(given), ask)
            start_s = _guarded(given, wanted)
        with _arrival(recovery_timeout_s + 2 * start_s):
            with leaving():
                plain, spare_pool = _staffed(given, wanted)
            opened, family = _opened(plain, spare_pool, topology, wanted)
    exit_report.note_opened_family()
    recovery = Recovery(opened, family, on_failure, recovery_timeout_s, start_s)
    family.recovery = recovery
    if family.joined:
        recovery.fill()  # the others do so, too
        exit_report.enter_world(family.world.rank, family.world.epoch, family.group)
    return opened


def _agreed(comm: MPI.Intracomm, ask: Callable[[], InitOptions]) -> InitOptions:
    """Ask for the same on all ranks, so that nobody waits for one that is refused."""
    try:
        wanted = ask()
    except Exception:
        native.agreed_max(comm, [1.0])
        raise
    _stand(comm, wanted)
    if native.agreed_max(comm, [0.0])[0]:
        raise Revoked("init")
    agree_equal(comm, "init", wanted.in_common())
    return wanted


def _stand(comm: MPI.Intracomm, wanted: InitOptions) -> None:
    """Note the place of a member to be: its end in here counts, too.  Local."""
    exit_report.report_opening()
    if setting("JOINS") is not None:
        return
    group, members = _group_of(comm), comm.size - wanted.spares
    exit_report.note_processes(comm.size, group)
    if comm.rank < members:
        exit_report.enter_world(comm.rank, 0, group, members)


def _group_of(comm: MPI.Intracomm) -> int:
    return max(0, ranks_in(comm, WORLD)[0])  # see `ballot.stand`


def _arrival(limit_s: float) -> AbstractContextManager[object]:
    """Let a process that was started for a vacant seat end if it comes in vain."""
    if setting("JOINS") is None:
        return nullcontext()
    return HardDeadline(limit_s, "closeranks: a new process is not awaited any more; it ends")


def _staffed(comm: MPI.Intracomm, wanted: InitOptions) -> tuple[MPI.Intracomm, SparePool | None]:
    """Set the spares apart; gives the members' communicator.  Collective."""
    spares, recruits = wanted.spares, wanted.recruits
    if found := recruited():
        whole, new, seats = found
        return whole, _on_call(SparePool(whole, new, seats=seats, recruits=recruits))
    plain = members = MPI.Intracomm(comm).Dup()
    spare_pool = (
        _on_call(SparePool(plain, spares, recruits=recruits)) if spares or recruits else None
    )
    if spare_pool is not None and spares:
        members = MPI.Intracomm(plain.Split(int(spare_pool.is_spare), plain.rank))
    if ulfm.is_on():
        members.Barrier()  # who were still making it would crash where it is revoked
    return members, spare_pool


def _on_call(spare_pool: SparePool) -> SparePool:
    before_finalize(
        spare_pool.end
    )  # the spares go home with this process, if it opens nothing, too
    return spare_pool


def _opened(
    plain: MPI.Intracomm,
    spare_pool: SparePool | None,
    topology: Topology | None,
    wanted: InitOptions,
) -> tuple[Communicator, Family]:
    """Open it on all members, or on none; spares wait for a seat in it."""
    if spare_pool is not None and spare_pool.is_spare:
        opened, family = _joined(spare_pool, wanted)
    else:
        opened, family = all_or_none(
            plain, lambda: _tried(plain, topology, wanted), lambda made: made[1].world.drop()
        )
    if spare_pool is not None:
        family.spare_pool = family.world.own(spare_pool)
    return opened, family


def _joined(spare_pool: SparePool, wanted: InitOptions) -> tuple[Communicator, Family]:
    """Wait until a seat is free, and take it; leaves when the job is over."""
    interpreter.load_early()  # the others will wait for this process
    gc.collect()  # else Python's next full collection may come while they do
    seat = spare_pool.wait_for_seat(wanted.recovery_timeout_s)
    world, facts = seat.world, seat.facts
    assert world is not None
    assert seat.seated is not None
    injected = Injection(world.seats[world.rank], seats=spare_pool.seats, joined=True)
    family = Family(
        timeout_s=wanted.timeout_s,
        deterministic=wanted.deterministic,
        check=wanted.check,
        faults=None if wanted.faults is None else injected,
        **facts.family,
    )
    family.world, family.joined = world, True
    family.seats, family.given = spare_pool.seats, facts.given
    family.seat_newcomers(facts.newcomers, seat.seated.joined)
    family.before, family.came = facts.before, facts.came | set(seat.seated.joined)
    family.born, family.synchronized, family.failed = world.epoch, False, facts.failed
    if wanted.timeout_s is not None:
        world.attendance.open()
    chooser = alike(facts.chooser, facts.sat, world.topology, facts.known)
    opened = Communicator.adopt(
        world.comm, family, world.topology, chooser=chooser, world=world, seats=world.seats
    )
    return opened, family


def _tried(
    plain: MPI.Intracomm, topology: Topology | None, wanted: InitOptions
) -> tuple[Communicator, Family]:
    """Make it, and tell a failure of one's own from those of others; collective."""
    with blaming("init", plain):
        if ulfm.is_on():
            return _open(plain, topology, wanted, Notices())
        notices = Notices.open(plain)
        with notices.beginning():
            return _open(interruptible(plain, notices), topology, wanted, notices)


def _open(
    plain: MPI.Intracomm, topology: Topology | None, wanted: InitOptions, notices: Notices
) -> tuple[Communicator, Family]:
    """Make the communicator; collective."""
    deterministic, faults = wanted.deterministic, wanted.faults
    if faults is not None and plain.rank == 0:
        sys.stderr.write(f"closeranks: faults on purpose: {setting('FAULTS') or 'as they come'}\n")
    table = read_tuning(agreed_tuning(plain, wanted.tuning))
    placed = _placed(plain, topology)
    tuned = fitting(plain, table, placed)
    with notices.inside:
        found = _linked(
            plain, placed, tuned, is_given=topology is not None, measures=not deterministic
        )
    can = _abilities(plain)
    family = Family(
        timeout_s=wanted.timeout_s,
        deterministic=deterministic,
        check=wanted.check,
        tuning=table if isinstance(table, Rules) else Rules(),
        threaded=can.threaded,
        devices=can.devices,
        reaches_devices=can.reaches_devices,
        group=_group_of(plain),
        faults=None if faults is None else Injection(plain.rank, faults, seats=plain.size),
        notices=notices,
    )
    family.seats, family.given = plain.size, topology
    family.world = world = World(0, plain, found, notices=notices)
    try:
        if wanted.timeout_s is not None:
            world.arm()
        plain = MPI.Intracomm(plain)
        with notices.inside:
            chooser = _chooser(plain, found, tuned, deterministic=deterministic)
        seats = tuple(range(plain.size))
        return Communicator.adopt(
            plain, family, found, chooser=chooser, world=world, seats=seats
        ), family
    except Exception:
        world.revoke()  # others may wait for this rank on any of its communicators
        world.close()
        raise


class _Abilities(NamedTuple):
    """What all ranks together can do; see `Family`."""

    threaded: bool
    devices: bool
    reaches_devices: bool


def _abilities(plain: MPI.Intracomm) -> _Abilities:
    """Agree on what depends on how the ranks were started, and where.  Collective."""
    threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    devices = array_interface.may_have_arrays()
    reaches = devices and cuda_aware.reaches_devices()
    said = [float(not threaded), float(devices), float(not reaches)]
    lacks_threads, has_devices, lacks_reach = native.agreed_max(plain, said)
    return _Abilities(not lacks_threads, bool(has_devices), not lacks_reach)


def _guarded(everybody: MPI.Intracomm, wanted: InitOptions) -> float:
    """Watch over the processes of this node: who ends, who stands still.

    Collective; gives the age of the slowest rank, for by then all are here.
    """
    if not ulfm.is_on():
        return 0.0
    node = split_by_node(everybody)
    pids = peers().watch_node(node)
    if pids[0] == os.getpid():
        watchdog.start(pids, wanted.silence_s)
    node.Free()
    return process_age_s()


def _placed(plain: MPI.Intracomm, topology: Topology | None) -> Topology:
    """Give the topology: the caller's, or a discovered one."""
    return discover(plain) if topology is None else topology


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
