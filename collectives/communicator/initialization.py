"""`init`: the collective steps by which all ranks open a communicator.

`_open_communicator` lists the steps in the order in which all ranks take them.
`_make_first_world` lists those of the first world.  The checks of options are
local, in `closeranks.collectives.communicator.init_options`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from mpi4py import MPI

from closeranks.collectives.arguments import native_handover as native
from closeranks.collectives.communicator.communicator import Communicator
from closeranks.collectives.communicator.init_options import InitOptions
from closeranks.collectives.dispatch.argument_check import agree_equal
from closeranks.collectives.dispatch.kernel_speed import measure
from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.engine.error_translation import blaming, interruptible, leaving, opening
from closeranks.collectives.engine.fault_injection import Injection
from closeranks.collectives.engine.init_state import Family, alike
from closeranks.collectives.fastpath.shortcut import prepare_early
from closeranks.collectives.faults.recovery import Recovery
from closeranks.collectives.faults.respawn import recruited
from closeranks.collectives.faults.spares import SparePool
from closeranks.collectives.selection.agreed_findings import first_findings
from closeranks.collectives.selection.agreed_tuning import agreed_tuning
from closeranks.collectives.selection.chooser import Chooser
from closeranks.collectives.selection.findings import TrialFindings
from closeranks.collectives.selection.planner import calibrate
from closeranks.collectives.selection.remembered import FindingsFile
from closeranks.collectives.selection.rules import Rules
from closeranks.collectives.selection.tuning_origin import fitting, job_origin
from closeranks.collectives.selection.tuning_table import Tuned, shape, together
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
from closeranks.comms.settings import setting
from closeranks.comms.topology.topology import Topology
from closeranks.errors import Revoked, Unavailable, UsageError

#: Where a node has more ranks, the memory of its kernels is made at the first call of one: it
#: takes a millisecond for each rank.
_MOST_TOUCHING: Final = 16


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
        Where they sit, newcomers too; default: it is discovered, and its links are
        measured.
    on_failure : str
        "raise": calls raise `PeerLost`; "shrink": `Communicator.attempts` goes on
        with the survivors; "replace": spares take the seats of dead ranks, and if
        no spare is left, new processes do.
    spares : int
        How many of the last ranks wait in this call until they are needed.  If the
        job ends before, they leave by SystemExit.  Default: as ``closeranks run
        --spares`` says.
    recruits : bool, optional
        Whether processes that run the same command line are started for the seats
        of dead ranks if no spare is left.  Default: where ``closeranks run
        --faults`` can, on one node, with all ranks of the job in ``comm``.
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
        On every rank, if one dies or fails meanwhile, in a job that survives it.
        A communicator is opened on all ranks, or on none.
    """
    given = _checked_comm(comm)
    likeness = MPI.Comm.Compare(given, WORLD)
    parse = partial(
        InitOptions.parse,
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
    return _open_communicator(given, parse)


def _checked_comm(comm: MPI.Intracomm | None) -> MPI.Intracomm:
    """Give the ranks to open a communicator on; an error is local."""
    forked_child.refuse_in_child("init")
    given = MPI.COMM_WORLD if comm is None else comm
    argument.instance("init", "comm", given, MPI.Intracomm, "give an MPI.Intracomm, or none")
    if given == MPI.COMM_NULL:
        raise UsageError("init", "comm is MPI.COMM_NULL", "call it on the ranks of a communicator")
    return given


def _open_communicator(comm: MPI.Intracomm, parse: Callable[[], InitOptions]) -> Communicator:
    """Open a communicator in five collective steps, on all ranks in this order.

    Spares, and new processes for vacant seats, wait for a seat in step 4.  In
    step 5 they take part in the recovery that gives them one.
    """
    with opening(comm):
        with leaving(), blaming("init", comm):
            # 1. Agree on the options.  If those of one rank are refused, all ranks raise.
            options = _agree_on_options(MPI.Intracomm(comm), parse)
            # 2. Watch the processes of the node.
            start_s = _watch_node(comm, options)
        with _arrival_limit(options.recovery_timeout_s + 2 * start_s):
            with leaving():
                # 3. Set the spares apart: the members get a communicator of their own.
                plain, spare_pool = _set_spares_apart(comm, options)
            # 4. Open the first world on all members, or on none.
            opened, family = _open_or_wait(plain, spare_pool, options)
    exit_report.note_opened_family()
    # 5. Make the recovery, which counts votes by messages where the library cannot agree.
    recovery = Recovery(
        opened.membership, family, options.on_failure, options.recovery_timeout_s, start_s,
        abandon=opened.abandon,
    )  # fmt: skip
    family.recovery = recovery
    if family.joined:
        recovery.fill()
        exit_report.enter_world(family.world.rank, family.world.epoch, family.group)
    return opened


def _agree_on_options(comm: MPI.Intracomm, parse: Callable[[], InitOptions]) -> InitOptions:
    """Parse the options of this rank, and compare them with those of the others.

    Collective.  A rank whose options are refused tells the others, which would
    wait for it otherwise.
    """
    try:
        options = parse()
    except Exception:
        native.agreed_max(comm, [1.0])
        raise
    _report_opening(comm, options)
    if native.agreed_max(comm, [0.0])[0]:
        raise Revoked("init")
    agree_equal(comm, "init", options.in_common())
    return options


def _report_opening(comm: MPI.Intracomm, options: InitOptions) -> None:
    """Report the rank of a member to be: its end in `init` counts, too.  Local."""
    exit_report.report_opening()
    if setting("JOINS") is not None:
        return
    group, members = _group_of(comm), comm.size - options.spares
    exit_report.note_processes(comm.size, group)
    if comm.rank < members:
        exit_report.enter_world(comm.rank, 0, group, members)


def _group_of(comm: MPI.Intracomm) -> int:
    """Name a group of ranks by the rank of its first in MPI_COMM_WORLD.  Local."""
    return max(0, ranks_in(comm, WORLD)[0])


def _arrival_limit(limit_s: float) -> AbstractContextManager[object]:
    """End a process that was started for a vacant seat if it comes too late."""
    if setting("JOINS") is None:
        return nullcontext()
    return HardDeadline(limit_s, "closeranks: a new process is not awaited any more; it ends")


def _watch_node(comm: MPI.Intracomm, options: InitOptions) -> float:
    """Watch the processes of this node: the ends of processes, and stopped processes.

    Collective; does nothing if the job ends with its first dead rank.

    Returns
    -------
    float
        Age of this process in seconds, after the slowest rank has come.
    """
    if not ulfm.is_on():
        return 0.0
    node = split_by_node(comm)
    pids = peers().watch_node(node)
    if pids[0] == os.getpid():
        watchdog.start(pids, options.silence_s)
    node.Free()
    return process_age_s()


def _set_spares_apart(
    comm: MPI.Intracomm, options: InitOptions
) -> tuple[MPI.Intracomm, SparePool | None]:
    """Give the communicator of the members, and the pool of all processes.

    Collective.  A new process joins the processes that have started it instead.
    """
    spares, recruits = options.spares, options.recruits
    if found := recruited():
        whole, new, seats = found
        return whole, _ended_by_finalize(SparePool(whole, new, seats=seats, recruits=recruits))
    plain = members = MPI.Intracomm(comm).Dup()
    spare_pool = (
        _ended_by_finalize(SparePool(plain, spares, recruits=recruits))
        if spares or recruits
        else None
    )
    if spare_pool is not None and spares:
        members = MPI.Intracomm(plain.Split(int(spare_pool.is_spare), plain.rank))
    if ulfm.is_on():
        members.Barrier()  # a rank that is still making it crashes where it is revoked
    return members, spare_pool


def _ended_by_finalize(spare_pool: SparePool) -> SparePool:
    """Let spares end with this process, even if it opens no communicator.  Local."""
    before_finalize(spare_pool.end)
    return spare_pool


def _open_or_wait(
    plain: MPI.Intracomm, spare_pool: SparePool | None, options: InitOptions
) -> tuple[Communicator, Family]:
    """Open the first world on all members or on none; a spare waits for a seat.

    Collective over the members; a spare returns when it has a seat.
    """
    if spare_pool is not None and spare_pool.is_spare:
        opened, family = _take_seat(spare_pool, options)
    else:
        opened, family = all_or_none(
            plain,
            lambda: _open_first_world(plain, options),
            lambda made: made[1].world.drop(),
        )
    if spare_pool is not None:
        family.spare_pool = family.world.own(spare_pool)
    return opened, family


def _take_seat(spare_pool: SparePool, options: InitOptions) -> tuple[Communicator, Family]:
    """Wait until a seat is vacant, and take it.

    Collective over the processes of the recovery; the process leaves by SystemExit
    when the job is over.
    """
    prepare_early()  # the others will wait for this process
    gc.collect()  # else Python's next full collection may come while they do
    seat = spare_pool.wait_for_seat(options.recovery_timeout_s)
    world, facts = seat.world, seat.facts
    assert world is not None
    assert seat.seated is not None
    injected = Injection(world.seats[world.rank], seats=spare_pool.seats, joined=True)
    family = Family(
        timeout_s=options.timeout_s,
        deterministic=options.deterministic,
        check=options.check,
        faults=None if options.faults is None else injected,
        **facts.family,
    )
    family.world, family.joined = world, True
    family.seats, family.given = spare_pool.seats, facts.given
    family.findings = facts.findings
    family.seat_newcomers(facts.newcomers, seat.seated.joined)
    family.before, family.came = facts.before, facts.came | set(seat.seated.joined)
    family.born, family.synchronized, family.failed = world.epoch, False, facts.failed
    if options.timeout_s is not None:
        world.attendance.open()
    found = family.findings.setdefault(shape(world.topology), TrialFindings())
    numbers = {**facts.chooser, "kernels": {}}  # as those who were there
    chooser = alike(numbers, facts.sat, world.topology, facts.known, findings=found)
    opened = Communicator.adopt(
        world.comm, family, world.topology, chooser=chooser, world=world, seats=world.seats
    )
    return opened, family


def _open_first_world(plain: MPI.Intracomm, options: InitOptions) -> tuple[Communicator, Family]:
    """Make the first world, and tell an error of this rank from those of others.

    Collective over the members.
    """
    with blaming("init", plain):
        if ulfm.is_on():
            return _make_first_world(plain, options, Notices())
        notices = Notices.open(plain)
        with notices.beginning():
            return _make_first_world(interruptible(plain, notices), options, notices)


def _make_first_world(
    plain: MPI.Intracomm, options: InitOptions, notices: Notices
) -> tuple[Communicator, Family]:
    """Make the first world in six collective steps, on all members in this order."""
    given, deterministic = options.topology, options.deterministic
    _announce_faults(plain, options)
    # 1. Read the tuning: rank 0 reads the files, and all ranks get the same table.
    table = read_tuning(agreed_tuning(plain, options.tuning))
    # 2. Find the topology, and measure the links that neither caller nor table knows.
    placed = discover(plain) if given is None else given
    tuned = fitting(plain, table, placed)
    with notices.inside:
        found = _linked(
            plain, placed, tuned, is_given=given is not None, measures=not deterministic
        )
    # 3. Agree on what all ranks can do.
    can = _abilities(plain)
    family = _new_family(plain, options, table, can, notices)
    # 4. Load compiled code where it has been made.  Make the world: its communicators and
    # node memory.
    prepare_early()
    family.world = world = World(0, plain, found, notices=notices)
    try:
        _touch_memory(world)
        if options.timeout_s is not None:
            world.arm()
        # 5. Begin with what earlier jobs have found: rank 0 reads it.
        if plain.size > 1 and not deterministic:
            if plain.rank == 0 and options.remember:
                family.findings_file = FindingsFile(job_origin(found))
            family.findings = first_findings(plain, family.findings_file)
        known = family.findings.setdefault(shape(found), TrialFindings())
        plain = MPI.Intracomm(plain)
        # 6. Measure the speed of the library, if no table knows it, and that of kernels.
        with notices.inside:
            chooser = _chooser(plain, found, tuned, known, deterministic=deterministic)
        seats = tuple(range(plain.size))
        opened = Communicator.adopt(plain, family, found, chooser=chooser, world=world, seats=seats)
        if not deterministic:
            with notices.inside:
                shares = measure(opened.membership.service, "allreduce", may_compile=False)
            if shares is not None:  # else later, when code has been compiled
                chooser.note_kernels("allreduce", shares)
        return opened, family
    except Exception:
        world.revoke()  # others may wait for this rank on any of its communicators
        world.close()
        raise


def _touch_memory(world: World) -> None:
    """Make the memory of kernels now: its pages cost more than many calls.

    Collective over the ranks of each node.  Where it is short, a call says so.
    """
    if world.kernels and 1 < world.node.size <= _MOST_TOUCHING:
        with suppress(Unavailable):
            world.memory(world.node_ranks)


def _announce_faults(plain: MPI.Intracomm, options: InitOptions) -> None:
    """Tell the user on rank 0 that faults are injected.  Local."""
    if options.faults is not None and plain.rank == 0:
        sys.stderr.write(f"closeranks: faults on purpose: {setting('FAULTS') or 'as they come'}\n")


def _new_family(
    plain: MPI.Intracomm,
    options: InitOptions,
    table: Rules | Tuned,
    can: _Abilities,
    notices: Notices,
) -> Family:
    """Give the shared state of the communicator and of those derived from it.  Local."""
    faults = options.faults
    family = Family(
        timeout_s=options.timeout_s,
        deterministic=options.deterministic,
        check=options.check,
        tuning=table if isinstance(table, Rules) else Rules(),
        threaded=can.threaded,
        devices=can.devices,
        reaches_devices=can.reaches_devices,
        group=_group_of(plain),
        faults=None if faults is None else Injection(plain.rank, faults, seats=plain.size),
        notices=notices,
    )
    family.seats, family.given = plain.size, options.topology
    return family


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


def _linked(
    plain: MPI.Intracomm,
    topology: Topology,
    tuned: Tuned | None,
    *,
    is_given: bool,
    measures: bool,
) -> Topology:
    """Give the topology its links: the caller's, a table's, or quickly measured ones.

    Collective.
    """
    known = {} if tuned is None else {name: level.link for name, level in tuned.levels.items()}
    if is_given:
        known = {name: k for name, k in known.items() if topology.links[name].source == "default"}
    elif measures and plain.size > 1 and not set(together(topology)) <= set(known):
        topology = quick(plain, topology)
    return topology.with_links(known) if known else topology


def _chooser(
    plain: MPI.Intracomm,
    topology: Topology,
    tuned: Tuned | None,
    known: TrialFindings,
    *,
    deterministic: bool,
) -> Chooser:
    """Make the chooser; a deterministic one depends on nothing measured now.

    Collective.  What it finds is told to ``known``.
    """
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
        node = topology.levels.index("node") if "node" in topology.levels else 0
        native, measured = calibrate(plain, is_wide=bool(topology.groups[node].max()))
        speed = speed or measured
    return Chooser(
        topology, native=native, speed=speed, trials=True, native_bytes=most, winners=winners,
        findings=known,
    )  # fmt: skip
