"""The errors of the package: one small tree, attributes first, text last.

Every class keeps its facts in attributes and derives its text from them, so an
error can be pickled on one rank and read on another.  A text names the
operation, the event, the ranks, the number against its bound and the way out.
Either every rank of a communicator raises the same class, or the docstring of
the raising function says "local".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def _restore(kind: type[Error]) -> Error:
    """Make an error without running its constructor; unpickling fills it."""
    return kind.__new__(kind)


def _ranks(ranks: Iterable[int]) -> tuple[int, ...]:
    """Give the ranks as plain integers, ascending, each once."""
    return tuple(sorted({int(rank) for rank in ranks}))


def named(ranks: tuple[int, ...]) -> str:
    """Name ranks for a reader: ``rank 3`` or ``ranks 3, 7, ... (12)``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= 8:
        return "ranks " + ", ".join(map(str, ranks))
    return "ranks " + ", ".join(map(str, ranks[:6])) + f", ... ({len(ranks)} in all)"


class Error(Exception):
    """Base of every error this package raises.

    Parameters
    ----------
    operation : str
        The operation, for example ``"Allreduce"``.
    problem : str
        The problem, with the values.
    remedy : str
        A way out; empty if there is none.

    Attributes
    ----------
    is_heard : bool
        Whether the other ranks of the call have been told of it.
    """

    is_heard = False

    def __init__(self, operation: str, problem: str = "", remedy: str = "") -> None:
        super().__init__()
        self.operation = operation
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.operation, self.problem) if part)
        return f"{text}; {self.remedy}" if self.remedy else text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self),), dict(self.__dict__)


class UsageError(Error, ValueError):
    """Raised when an argument cannot be used; the same on every rank."""


class WrongType(UsageError, TypeError):
    """Raised where mpi4py raises `TypeError`, for programs that expect that."""


class UnknownCode(UsageError, KeyError):
    """Raised where mpi4py raises `KeyError`: no datatype has such a code."""


class WrongHandle(UsageError, AttributeError):
    """Raised by a handle of no communicator of ours: nothing serves it."""


class TopologyError(UsageError):
    """Raised when a topology is impossible, unreadable or does not fit."""


class PlanError(Error):
    """Raised when a simulated plan deadlocks, races or moves wrong bytes."""


class Disagreement(Error):
    """Raised on every rank when ranks passed different arguments.

    Parameters
    ----------
    operation : str
        The call that was compared.
    values : mapping of int to object
        Value of each rank; kept as ``.values``.
    remedy : str
        A way out.
    """

    def __init__(
        self,
        operation: str,
        values: Mapping[int, object],
        remedy: str = "pass the same on every rank",
    ) -> None:
        self.values = {int(rank): values[rank] for rank in sorted(values)}
        super().__init__(operation, self._differences(), remedy)

    def _differences(self) -> str:
        """Group the ranks by the values they passed."""
        ranks: dict[str, list[int]] = {}
        for rank, value in self.values.items():
            ranks.setdefault(str(value), []).append(rank)
        parts = [f"{value} on {named(tuple(who))}" for value, who in ranks.items()]
        return "ranks disagree: " + "; ".join(parts)


class PeerError(Error):
    """Raised when other ranks keep an operation from ending.

    Parameters
    ----------
    operation : str
        The operation that could not end.
    ranks : iterable of int
        The ranks it is about, in the numbering of the communicator at the
        time of the call; kept ascending as ``.ranks``.
    problem : str
        The event that concerns them.
    remedy : str
        A way out.
    """

    def __init__(
        self,
        operation: str,
        ranks: Iterable[int] = (),
        problem: str = "failed",
        remedy: str = "",
    ) -> None:
        self.ranks = _ranks(ranks)
        text = f"{named(self.ranks)} {problem}" if self.ranks else problem
        super().__init__(operation, text, remedy)


class PeerLost(PeerError):
    """Raised when ranks died or left.

    Parameters
    ----------
    operation : str
        The operation during which the loss was noticed.
    ranks : iterable of int
        The lost ranks that are members of the communicator.
    seats : iterable of int, optional
        Their seats in the first world; ``ranks`` if not given.
    cause : object, optional
        Why they left, if they could still report it.
    remedy : str
        A way out.
    """

    def __init__(
        self,
        operation: str,
        ranks: Iterable[int] = (),
        *,
        seats: Iterable[int] | None = None,
        cause: object = None,
        remedy: str = "repeat it in comm.attempts(), with on_failure='shrink' or 'replace'",
    ) -> None:
        ranks = _ranks(ranks)
        self.seats = ranks if seats is None else _ranks(seats)
        self.cause = cause
        problem = "lost" if cause is None else f"lost ({cause})"
        if self.seats and not ranks:
            problem = f"{named(self.seats)} of the first world {problem}, outside this one"
        super().__init__(operation, ranks, problem, remedy)


class PeerLate(PeerError):
    """Raised when ranks did not arrive within the communicator's deadline.

    Parameters
    ----------
    operation : str
        The operation that waited.
    ranks : iterable of int
        Ranks that had not arrived or were silent, the same on all survivors; empty
        if all ranks are there, and slow.
    waited_s, limit_s : float
        Time waited and the deadline, in seconds, of the rank that gave up first.
    phase : str
        Progress of the call on this rank, and the ranks it waited for.
    remedy : str
        A way out.
    """

    def __init__(
        self,
        operation: str,
        ranks: Iterable[int] = (),
        *,
        waited_s: float,
        limit_s: float,
        phase: str = "",
        remedy: str = "raise timeout_s, or look for what holds the ranks up",
    ) -> None:
        self.waited_s, self.limit_s = float(waited_s), float(limit_s)
        self.phase = phase
        ranks = _ranks(ranks)
        problem = "not arrived" if ranks else "not ended"
        problem += f" after {waited_s:.3g} s, limit {limit_s:.3g} s"
        super().__init__(operation, ranks, f"{problem} ({phase})" if phase else problem, remedy)


class Revoked(PeerError):
    """Raised when a communicator may not be used any more.

    Parameters
    ----------
    operation : str
        The call that was refused.
    ranks : iterable of int
        The ranks that caused it, if known.
    problem : str
        Why the communicator cannot be used.
    remedy : str
        A way out.
    for_good : bool
        Whether no recovery helps, kept as ``.for_good``: in attempts it is an
        error like any other.

    Attributes
    ----------
    cause : str
        Act of another rank that led to it, "left by ValueError: mine"; empty if
        unknown.
    """

    def __init__(
        self,
        operation: str,
        ranks: Iterable[int] = (),
        problem: str = "the communicator was revoked",
        remedy: str = "repeat it in comm.attempts(), or make the communicator anew",
        *,
        for_good: bool = False,
    ) -> None:
        super().__init__(operation, (), problem, remedy)
        self.ranks, self.for_good, self.cause = _ranks(ranks), for_good, ""


class CodeError(Error):
    """Raised when an erasure or gradient code cannot give its answer."""


class TooManyErasures(CodeError):
    """Raised when more blocks are gone than the code can rebuild.

    Parameters
    ----------
    operation : str
        The rebuild.
    lost : iterable of int
        The lost blocks or ranks; kept ascending as ``.lost``.
    tolerated : int
        How many the code can lose.
    remedy : str
        A way out.
    """

    def __init__(
        self, operation: str, lost: Iterable[int], tolerated: int, remedy: str = ""
    ) -> None:
        self.lost = _ranks(lost)
        self.tolerated = int(tolerated)
        problem = f"lost {named(self.lost)}, code tolerates {self.tolerated}"
        super().__init__(operation, problem, remedy)


class Corrupted(CodeError):
    """Raised when stored bytes differ from their checksum.

    Parameters
    ----------
    operation : str
        The read.
    rank : int
        Owner of the bytes.
    offset : int
        Where the damaged piece starts, in bytes.
    expected, found : object
        The checksum on record and the one computed.
    remedy : str
        A way out.
    """

    def __init__(
        self,
        operation: str,
        *,
        rank: int,
        offset: int,
        expected: object,
        found: object,
        remedy: str = "",
    ) -> None:
        self.rank = int(rank)
        self.offset = int(offset)
        self.expected = expected
        self.found = found
        problem = f"rank {rank} at byte {offset}: checksum {found}, expected {expected}"
        super().__init__(operation, problem, remedy)


class CheckpointError(Error):
    """Raised when a checkpoint cannot be written, read or reshaped."""


class NotFound(CheckpointError, FileNotFoundError):
    """Raised when a checkpoint that was asked for does not exist."""


class Incomplete(CheckpointError):
    """Raised when parts of a checkpoint are missing.

    Parameters
    ----------
    operation : str
        The read.
    missing : iterable of str
        The parts that are not there; kept as ``.missing``.
    remedy : str
        A way out.
    """

    def __init__(self, operation: str, missing: Iterable[str], remedy: str = "") -> None:
        self.missing = tuple(missing)
        super().__init__(operation, "missing " + ", ".join(self.missing), remedy)


class Unavailable(Error, ImportError):
    """Raised when a library, a device or an MPI feature is absent.

    Parameters
    ----------
    what : str
        The absent library, device or feature.
    remedy : str
        How to get it.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        self.what = what
        super().__init__(what, "not available here", remedy)
