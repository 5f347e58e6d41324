"""What the communicators of one `init` have in common."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from closeranks.collectives.arguments.call_key import Agreed
from closeranks.collectives.selection.chooser import Chooser
from closeranks.collectives.selection.findings import TrialFindings
from closeranks.collectives.selection.tuning_table import shape
from closeranks.comms.liveness.failure_notices import Notices
from closeranks.comms.mpi import ulfm
from closeranks.comms.registry import Registry
from closeranks.errors import Revoked

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.arguments.collective_call import CollectiveCall
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.fault_injection import Injection
    from closeranks.collectives.selection.remembered import FindingsFile
    from closeranks.collectives.selection.rules import Rules
    from closeranks.comms.topology.topology import Topology

#: Seconds that closing waits for the other ranks at least, and where calls have no
#: deadline: one of them may still write what all have computed.  Less where nobody
#: hears of a rank of another node that gives up.
CLOSING_S, UNHURRIED_S, DEAF_S = 30.0, 3600.0, 300.0


class ShortcutSwitch(Protocol):
    """The shortcuts of one communicator, as its family switches them.

    `closeranks.collectives.fastpath.shortcut.Shortcuts`, a package above, is one.
    """

    def keep(self, keeps: bool) -> None:
        """Let calls keep the buffers that they overwrite, or not."""

    def follow(self, follows: bool) -> None:
        """Let an attempt follow the requests of calls, or not."""

    def allow(self, allowed: bool) -> None:
        """Let calls go straight to the library, or not."""


class AttemptKeeper(Protocol):
    """The attempt under way, as calls see it.

    `closeranks.collectives.faults.attempts.Attempt`, a package above, is one.
    """

    restores: bool

    def keep(self, demand: CollectiveCall) -> None:
        """Copy the buffer that a call overwrites."""

    def save(self, whole: Any) -> None:
        """Copy a buffer, given as a message or as a vector of messages."""

    def follow(self, request: Any) -> None:
        """Wait for a request before the attempt ends."""

    def follow_start(self, operation: Any) -> None:
        """Wait for a started persistent operation before the attempt ends."""

    def follow_stream(self, stream: tuple[int, int], event: Any, *worlds: World) -> None:
        """Wait for a stream of a device before the attempt ends."""


class SpareKeeper(Protocol):
    """The members of a job and its spares, as a family keeps them.

    `closeranks.collectives.faults.spares.SparePool`, a package above, is one.
    """

    @property
    def everybody(self) -> MPI.Intracomm:
        """Members and spares."""

    @property
    def recruits(self) -> Any:
        """How new processes are started, None where none are."""

    def enlist(self, vacant: int, limit_s: float) -> bool:
        """Start processes for vacant seats; True if the members must meet again."""

    def take(self, whole: MPI.Intracomm, seated: Any) -> None:
        """Go on with the members and spares that are left."""

    def settle(self) -> None:
        """Note that an attempt was agreed."""

    def revoke(self) -> None:
        """Wake all that wait in it."""

    def close(self) -> None:
        """Free what it holds."""

    def end(self) -> None:
        """Send the spares home."""


class Recoverer(Protocol):
    """The recovery of a family, as its communicators start attempts.

    `closeranks.collectives.faults.recovery.Recovery`, a package above, is one.
    """

    def attempts(self, limit: int | None, min_ranks: int, *, restores: bool) -> Iterator[Any]:
        """Give attempts until one is agreed."""


class Family:
    """Options of an `init`, shared with every communicator derived from it.

    Parameters
    ----------
    timeout_s : float or None
        Deadline of every call, seconds.
    deterministic : bool
        Whether nothing is left to the library.
    check : bool
        Whether arguments are compared at every call.
    tuning : Rules
        Algorithms that a table asks for.
    threaded : bool
        Whether a thread may drive what nobody waits for: all ranks have
        MPI_THREAD_MULTIPLE.
    devices : bool
        Whether arrays on devices may be met on any rank.
    reaches_devices : bool
        Whether the library takes device memory by itself, on all ranks.
    group : int
        Rank in MPI_COMM_WORLD of who was first in the first world: its name.
    faults : Injection, optional
        What goes wrong on purpose on this rank.
    notices : Notices, optional
        What is heard of ranks that give up; default: nothing.

    Attributes
    ----------
    timeout_s, deterministic, check, tuning, threaded, devices, reaches_devices
        As given.
    group : int
        As given.
    faults : Injection or None
        As given.
    notices : Notices
        As given.
    joined : bool
        Whether this process entered later than the others.
    overrides : int
        Number of ``using`` blocks that are open.
    attempt : AttemptKeeper or None
        What keeps buffers and requests of calls that may have to be repeated.
    born : int
        Epoch in which this process became a member.
    newcomers : dict of int to int
        Seat -> how many times it was given to a newcomer, for those that were.
    seats : int
        How many members the first world had.
    given : Topology or None
        Where these sit, if the program says so.
    synchronized : bool
        Whether its state counts; a newcomer's does once an attempt was agreed in
        which, or before which, it was given that of the others.
    brought : bool
        Whether it was given that since the last attempt ended.
    findings : dict of str to TrialFindings
        What trials of all communicators and earlier jobs have found, by the shape
        of the topology.
    findings_file : FindingsFile or None
        Where later jobs find it, if this rank is to write it.
    failed : int
        How many attempts have failed in the loop that is under way.
    fruitless : int
        How many of its recoveries, one after the other, have changed no member.
    before : tuple of int
        Seats of the world that the last recovery in that loop began with.
    came : set of int
        Seats that were taken in that recovery.
    left : bool
        Whether an attempt has failed and was not repeated.
    recovery : Recoverer
        How they go on after ranks have died.
    spare_pool : SpareKeeper or None
        The members and their spares.
    world : World
        The world of the first communicator: owns all that is derived.
    """

    __slots__ = (
        "_plain",
        "_shortcuts",
        "_steering",
        "attempt",
        "before",
        "born",
        "brought",
        "came",
        "check",
        "deterministic",
        "devices",
        "failed",
        "faults",
        "findings",
        "findings_file",
        "fruitless",
        "given",
        "group",
        "joined",
        "left",
        "newcomers",
        "notices",
        "overrides",
        "reaches_devices",
        "recovery",
        "seats",
        "spare_pool",
        "synchronized",
        "threaded",
        "timeout_s",
        "tuning",
        "world",
    )

    given: Topology | None
    recovery: Recoverer
    seats: int
    world: World

    def __init__(
        self,
        *,
        timeout_s: float | None,
        deterministic: bool,
        check: bool,
        tuning: Rules,
        threaded: bool,
        devices: bool,
        reaches_devices: bool,
        group: int,
        faults: Injection | None = None,
        notices: Notices | None = None,
    ) -> None:
        self.timeout_s, self.deterministic = timeout_s, deterministic
        self.check, self.tuning, self.threaded = check, tuning, threaded
        self.devices, self.reaches_devices, self.group = devices, reaches_devices, group
        self.overrides = 0
        self.attempt: AttemptKeeper | None = None
        self.spare_pool: SpareKeeper | None = None
        self.joined = self.left = self.brought = False
        self.born, self.synchronized = 0, True
        self.failed = self.fruitless = 0
        self.before: tuple[int, ...] = ()
        self.came: set[int] = set()
        self.findings: dict[str, TrialFindings] = {}
        self.findings_file: FindingsFile | None = None
        self.newcomers: dict[int, int] = {}
        self.faults, self.notices = faults, notices or Notices()
        self.notices.on_news = self.shut
        ulfm.begin()
        self._plain = timeout_s is None and not deterministic and not check and faults is None
        self._steering = threading.RLock()  # the channel's thread may shut
        self._shortcuts: Registry[ShortcutSwitch] = Registry()

    @property
    def straight(self) -> bool:
        """Whether small calls may go straight to the library."""
        return self._plain and not self.overrides

    @property
    def closing_s(self) -> float:
        """How long closing waits for the other ranks, in seconds."""
        if self.timeout_s is not None:
            return max(CLOSING_S, self.timeout_s)
        if self.world.revoked:  # who has caught that may still come, or not
            return CLOSING_S
        hears = ulfm.is_on() or self.world.node.size == self.world.size
        return UNHURRIED_S if hears else DEAF_S

    @property
    def abilities(self) -> dict[str, Any]:
        """What newcomers are told: found out or read by all ranks together."""
        return {
            "tuning": self.tuning,
            "threaded": self.threaded,
            "devices": self.devices,
            "reaches_devices": self.reaches_devices,
            "group": self.group,
        }

    @property
    def lost(self) -> tuple[int, ...]:
        """Seats that the last recovery of the loop that is under way has cost."""
        return tuple(sorted(set(self.before) - (set(self.world.seats) - self.came)))

    def remember(self) -> None:
        """Write what was found to the file of later jobs, if this rank has it.  Local.

        Not after a failure: times may have been those of ranks that were going.
        """
        if self.findings_file is not None and self.world.epoch == 0:
            self.findings_file.write(self.findings)

    def refuse(self, operation: str) -> None:
        """Raise once if an attempt has failed and was not repeated.  Local."""
        left, self.left = self.left, False
        if left:
            raise Revoked(operation, problem="an attempt has failed and was left, not repeated",
                          remedy="leave the with block by its end", for_good=True)  # fmt: skip

    def seat_newcomers(self, before: Mapping[int, int], joined: Iterable[int]) -> None:
        """Count who has taken a seat.  Local.

        Parameters
        ----------
        before : mapping of int to int
            As `newcomers`, in the world that has ended.
        joined : iterable of int
            Seats of newcomers.
        """
        self.newcomers = {**before, **{seat: before.get(seat, 0) + 1 for seat in joined}}

    def admit(self, shortcuts: ShortcutSwitch) -> None:
        """Allow the shortcuts of a communicator now, forbid them when need be.  Local.

        Parameters
        ----------
        shortcuts : ShortcutSwitch
            Not kept alive.
        """
        self._shortcuts.add(shortcuts)
        shortcuts.keep(self.attempt is not None and self.attempt.restores)
        shortcuts.follow(self.attempt is not None)
        with self._steering:
            shortcuts.allow(self.straight)

    def dismiss(self, shortcuts: ShortcutSwitch) -> None:
        """Forget the shortcuts of a communicator, and forbid them.  Local."""
        self._shortcuts.discard(shortcuts)
        shortcuts.allow(False)

    def begin(self, attempt: AttemptKeeper) -> None:
        """Let an attempt keep what calls overwrite.  Local.

        Parameters
        ----------
        attempt : AttemptKeeper
            Until `end`.
        """
        self.attempt = attempt
        self._keep(attempt.restores)

    def end(self) -> None:
        """Keep nothing any more."""
        self.attempt = None
        self._keep(False)

    def settle(self, *, agreed: bool) -> None:
        """Note how an attempt has ended: a failed one may have brought half.  Local."""
        self.synchronized |= agreed and self.brought
        self.brought = False

    def _keep(self, keeps: bool) -> None:
        for shortcuts in self._shortcuts:
            shortcuts.keep(keeps)
            shortcuts.follow(self.attempt is not None)

    def override(self, step: int) -> None:
        """Count ``using`` blocks in and out: +1 or -1."""
        self.overrides += step
        self._steer()

    def shut(self) -> None:
        """Let no call go straight to the library any more."""
        self._plain = False
        self._steer()

    def _steer(self) -> None:
        with self._steering:
            for shortcuts in self._shortcuts:
                shortcuts.allow(self.straight)


def alike(
    numbers: Mapping[str, Any],
    sat: str,
    topology: Topology,
    heritage: Mapping[Agreed, str] | None = None,
    **known: Any,
) -> Chooser:
    """Make a chooser as another one, for ranks that may sit elsewhere.  Local.

    Parameters
    ----------
    numbers : mapping of str to object
        `Chooser.numbers` of the other one.
    sat : str
        `shape` of where its ranks sit.
    topology : Topology
        Where these sit.
    heritage : mapping of Agreed to str, optional
        As for `Chooser`.
    **known
        Other arguments for it.

    Returns
    -------
    Chooser
        With the same measured numbers; with the winners too where the ranks sit
        alike.
    """
    winners = numbers["winners"] if shape(topology) == sat else None
    return Chooser(topology, **{**numbers, "winners": winners}, heritage=heritage, **known)
