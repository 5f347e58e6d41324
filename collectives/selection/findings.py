"""What trials have found, kept for other communicators and for later jobs.

A finding holds for ranks that sit alike: `TrialFindings` belong to a shape of
a topology, see `closeranks.collectives.selection.tuning_table.shape`.  A rank
keeps those of all its communicators.  A new communicator begins with what its
ranks have agreed on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, NamedTuple

#: Seconds that trials may take in any case, and the share of the time in collectives that
#: they may take beyond.
FREE_S: Final = 20e-3
SHARE: Final = 0.02


class CallKind(NamedTuple):
    """The calls that share a choice.

    Attributes
    ----------
    operation, size_class, commutative
        As in `closeranks.collectives.arguments.call_key.Agreed`.
    """

    operation: str
    size_class: int
    commutative: bool = True


class TrialFinding(NamedTuple):
    """The fastest algorithm of a kind of call, as ranks have agreed.

    Attributes
    ----------
    algorithm : str
        "native" or a name of the catalogue.
    seconds : float
        Time of a call.
    native_s : float
        The library's; infinite where it was not tried.
    is_remembered : bool
        Whether an earlier job has found it.
    """

    algorithm: str
    seconds: float
    native_s: float = math.inf
    is_remembered: bool = False


@dataclass
class TrialBudget:
    """How long trials may take; the same on all ranks of a communicator.

    It counts predicted and agreed times, never those of a rank's own clock.

    Attributes
    ----------
    called_s : float
        Time of calls in collectives, seconds.
    tried_s : float
        Time of trials, seconds.
    """

    called_s: float = 0.0
    tried_s: float = 0.0

    def allows(self, seconds: float) -> bool:
        """Tell whether a race that takes so long may begin.  Local."""
        return self.tried_s + seconds <= FREE_S + SHARE * self.called_s


@dataclass
class TrialFindings:
    """What is known of one shape, and the budget that is left.

    Attributes
    ----------
    by_kind : dict of CallKind to TrialFinding
        The fastest algorithms.
    budget : TrialBudget
        Of trials on this shape.
    """

    by_kind: dict[CallKind, TrialFinding] = field(default_factory=dict)
    budget: TrialBudget = field(default_factory=TrialBudget)

    def copy(self) -> TrialFindings:
        """Give the same, to be changed by somebody else.  Local."""
        return TrialFindings(dict(self.by_kind), replace(self.budget))

    def take(self, other: TrialFindings) -> None:
        """Be what another rank knows.  Local."""
        self.by_kind, self.budget = dict(other.by_kind), replace(other.budget)

    def digest(self) -> int:
        """Give a number below 2**52 that is equal for equal findings.  Local."""
        told = repr((sorted(self.by_kind.items()), self.budget))
        return int.from_bytes(blake2b(told.encode(), digest_size=8).digest()) >> 12
