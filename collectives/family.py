"""What the communicators of one `init` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from closeranks.collectives.choose import Chooser
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.rules import Rules
    from closeranks.collectives.shortcut import Shortcuts
    from closeranks.collectives.world import World
    from closeranks.comms.topology import Topology


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

    Attributes
    ----------
    timeout_s, deterministic, check, tuning, threaded, devices, reaches_devices
        As given.
    joined : bool
        Whether this process entered later than the others.
    overrides : int
        Number of ``using`` blocks that are open.
    world : World
        The world of the first communicator: owns all that is derived.
    """

    __slots__ = (
        "_plain",
        "_shortcuts",
        "check",
        "deterministic",
        "devices",
        "joined",
        "overrides",
        "reaches_devices",
        "threaded",
        "timeout_s",
        "tuning",
        "world",
    )

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
    ) -> None:
        self.timeout_s, self.deterministic = timeout_s, deterministic
        self.check, self.tuning, self.threaded = check, tuning, threaded
        self.devices, self.reaches_devices = devices, reaches_devices
        self.overrides = 0
        self.joined = False
        self._plain = timeout_s is None and not deterministic and not check
        self._shortcuts: WeakSet[Shortcuts] = WeakSet()

    @property
    def straight(self) -> bool:
        """Whether small calls may go straight to the library."""
        return self._plain and not self.overrides

    def admit(self, shortcuts: Shortcuts) -> None:
        """Allow the shortcuts of a communicator now, forbid them when need be.  Local.

        Parameters
        ----------
        shortcuts : Shortcuts
            Not kept alive.
        """
        self._shortcuts.add(shortcuts)
        shortcuts.allow(self.straight)

    def override(self, step: int) -> None:
        """Count ``using`` blocks in and out: +1 or -1."""
        self.overrides += step
        self._steer()

    def shut(self) -> None:
        """Let no call go straight to the library any more."""
        self._plain = False
        self._steer()

    def _steer(self) -> None:
        for shortcuts in self._shortcuts:
            shortcuts.allow(self.straight)


def alike(chooser: Chooser, topology: Topology) -> Chooser:
    """Make a chooser for some of the ranks that another one is for.  Local.

    Parameters
    ----------
    chooser : Chooser
        Of the communicator they come from.
    topology : Topology
        Where they sit.

    Returns
    -------
    Chooser
        With the same measured numbers; with the winners too where the ranks sit
        alike.
    """
    mine = chooser.topology
    is_alike = topology.levels == mine.levels and np.array_equal(topology.groups, mine.groups)
    return Chooser(
        topology,
        native=chooser.native,
        speed=chooser.speed,
        trials=chooser.trials,
        allow_native=chooser.allow_native,
        winners=chooser.winners if is_alike else None,
    )


def check_timeout(where: str, timeout_s: float | None) -> None:
    """Raise UsageError unless a timeout is None or positive.  Local.

    Parameters
    ----------
    where : str
        Who asks, for the text of an error.
    timeout_s : float or None
        Seconds.
    """
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(where, f"timeout_s is {timeout_s!r}", "give seconds above 0, or None")
