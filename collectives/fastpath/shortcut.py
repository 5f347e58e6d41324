"""Shortcuts: known calls cost what the library or a kernel takes, and no more.

Python takes half a microsecond to look at the arguments of a call, and several
where ranks share a core, for all that it looks at has left the caches since.
So where calls of a size class go to the library for now, or to a kernel in the
memory of the node, a builtin function of machine code replaces the
communicator's method.  It reads the sizes of a call by its `Rule`, and calls
the library's method or the kernel, else ours.  What it cannot take, or mpi4py
refuses, goes the long way, where errors are explained.  Errors of the call of
the library itself are explained as there.

A class is known, not a size: the next call may be of a size never seen.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.engine import interpreter
from closeranks.collectives.engine.interpreter import SHORTCUT
from closeranks.collectives.fastpath.request_wait import ShortWait
from closeranks.collectives.fastpath.shortcut_layout import ALL_KEPT, KEPT
from closeranks.collectives.fastpath.shortcut_record import (
    UNCOUNTED,
    Begun,
    KnownSizes,
    Record,
    empty_table,
    is_readable,
    record_of,
)
from closeranks.collectives.fastpath.shortcut_versions import are_listed
from closeranks.collectives.selection.call_options import AUTO, NATIVE, SHARED
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import FAST, KEYWORDS, builtin

if TYPE_CHECKING:
    from closeranks.collectives.arguments.collective_call import CollectiveCall
    from closeranks.collectives.fastpath.shm_call import ShmCall
    from closeranks.collectives.fastpath.shortcut_record import Explain


class Rule(NamedTuple):
    """Which arguments tell whether a call is known; -1 where none does.

    Attributes
    ----------
    sized : int
        Its bytes are the size of the call.
    whole : int
        Has as many such blocks as there are ranks.
    equal : int
        Has as many bytes.
    vector, second : int
        Are ``[array, counts]`` or ``[array, counts, type]``, whose blocks lie
        inside the array; all other messages are arrays, ``[array, type]`` or
        ``[array, count, type]``.
    part : int
        Has the bytes of this rank's block of ``vector``.
    given : int
        Must be there, and not None.
    root : int
        The root; other ranks look only at ``sized``.
    by_total : bool
        Whether all blocks of ``vector`` are the size.
    blocked : bool
        Whether ``sized`` and ``equal`` have a block for every rank.
    buffers : int
        How many arguments are messages: the first ones.
    moves : bool
        Whether both are to be of one type; the library compares them where it
        reduces.
    mean : bool
        Whether the class is that of the mean block, not of all blocks.
    """

    sized: int = -1
    whole: int = -1
    equal: int = -1
    vector: int = -1
    second: int = -1
    part: int = -1
    given: int = -1
    root: int = -1
    by_total: bool = False
    blocked: bool = False
    buffers: int = 2
    moves: bool = False
    mean: bool = False


RULES: Final[dict[str, Rule]] = {
    "barrier": Rule(buffers=0),
    "bcast": Rule(sized=0, root=1, buffers=1),
    "reduce": Rule(sized=0, root=3),
    "allreduce": Rule(sized=1),
    "reduce_scatter_block": Rule(sized=0, blocked=True, mean=True),
    "reduce_scatter": Rule(sized=0, given=2, mean=True),
    "allgather": Rule(sized=0, whole=1, moves=True),
    "allgatherv": Rule(vector=1, part=0, by_total=True, moves=True, mean=True),
    "gather": Rule(sized=0, whole=1, root=2, moves=True),
    "gatherv": Rule(vector=1, part=0, root=2, moves=True),
    "scatter": Rule(sized=1, whole=0, root=2, moves=True),
    "scatterv": Rule(vector=0, part=1, root=2, moves=True),
    "alltoall": Rule(sized=0, equal=1, blocked=True, moves=True, mean=True),
    "alltoallv": Rule(vector=0, second=1, moves=True),
    "scan": Rule(sized=1),
    "exscan": Rule(sized=1),
}
#: Before the name of an operation: its calls that return a request.
BEGINS: Final = "i"
#: Operations that leave alone what a call in place reads.
_READING: Final = {"barrier", "bcast", "scatter", "scatterv"}
#: So many of what `Shortcuts.quick` makes are kept: each has a table of its own.
_MOST_QUICK: Final = 32


class Shortcuts:
    """The calls of one communicator that are known to go to one place.

    All its ranks learn the same size classes in the same order.

    Parameters
    ----------
    member : MPI.Intracomm
        The communicator, whose methods are replaced; not kept alive.
    replaces : bool
        Whether they are.
    calls_left : callable, optional
        Gives for an operation the numbers of calls that a class is known for, see
        `closeranks.collectives.selection.chooser.Chooser.calls_left`; default: for
        good.

    Attributes
    ----------
    explain : callable
        Given an operation and an error of the library's call, gives what the
        user is told; the error itself until somebody sets it.
    is_over : callable
        Whether calls must not go straight any more, whoever allows it.
    words : tuple of ndarray of int64, shape (1,)
        Where calls that have begun are counted, and those of the library under
        way.
    probes : dict of str to callable
        Operation -> what does a call, given all its arguments, if it is a known
        one, and returns `NotImplemented` if it is not: for who holds on to a
        method that has been replaced since, or calls it from one of his own.
    probes_of : dict of str to dict of str to callable
        Algorithm that a call asks for -> ``probes``, where there may be any.
    library : dict of str to set of int
        Operation -> size classes that are the library's; read only.
    allowed : bool
        Whether calls may go straight, see `allow`.
    """

    def __init__(
        self,
        member: MPI.Intracomm,
        *,
        replaces: bool = True,
        calls_left: Callable[[str], NDArray[np.int64]] = lambda _: UNCOUNTED,
    ) -> None:
        self._member, self._replaces = weakref.ref(member), replaces
        self.explain: Callable[[str, MPI.Exception], Exception] = lambda _, error: error
        self.is_over: Callable[[], bool] = lambda: False
        self.words = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._asked: dict[str, Shortcuts] = {}
        self._lock = threading.RLock()  # another thread may forbid them
        self._known = {name: KnownSizes(calls_left(name)) for name in RULES}
        self._known |= {BEGINS + name: KnownSizes() for name in RULES}
        self._quick: dict[ShmCall, Callable[..., object]] = {}
        self._methods: dict[str, str] = {}
        self._learnt: set[str] = set()
        self._records: dict[str, Record] = {}
        self.allowed = self._keeps = self._follows = False
        self._begun: dict[str, Begun] = {}
        self.library = {name: known.library for name, known in self._known.items()}
        self.probes: dict[str, Callable[..., object]] = {}
        self.probes_of: dict[str, dict[str, Callable[..., object]]] = {AUTO: self.probes}

    def asked_for(self, algorithm: str) -> Shortcuts | None:
        """Give what serves calls that ask for an algorithm.  Local.

        Parameters
        ----------
        algorithm : str
            What was passed as ``algorithm=``.

        Returns
        -------
        Shortcuts or None
            These where the call leaves the choice to us; some that replace no
            method where it names the library or a kernel; None elsewhere.
        """
        if algorithm is AUTO:
            return self
        given: object = algorithm
        if not isinstance(given, str):  # which is refused later
            return None
        if algorithm == AUTO:
            return self
        if algorithm not in self._asked and algorithm in (NATIVE, SHARED):
            member = self._member()
            assert member is not None, "who calls holds the communicator"
            asked = Shortcuts(member, replaces=False)
            asked.explain = lambda operation, error: self.explain(operation, error)
            asked.words = self.words
            asked.keep(self._keeps)
            with self._lock:
                self._asked[algorithm] = asked
                self.probes_of[algorithm] = asked.probes
                asked.allow(self.allowed)
        return self._asked.get(algorithm)

    def is_library(self, operation: str, size_class: int, begins: str = "") -> bool:
        """Tell whether calls of a size class are the library's.  Local.

        Parameters
        ----------
        operation : str
            The operation.
        size_class : int
            As in `closeranks.collectives.arguments.call_key.Agreed`.
        begins : str
            `BEGINS` if they return a request.
        """
        operation = begins + operation
        return operation in self._learnt and self._known[operation].is_library(size_class)

    def keep_only(self, operation: str, size_class: int, algorithm: str) -> None:
        """Know a size class no more if its calls go elsewhere from now on.

        Local; on all ranks after the same call.
        """
        known = self._known[operation]
        if size_class in known.classes and not known.goes_to(size_class, algorithm):
            with self._lock:
                known.forget(size_class)

    def learn(self, operation: str, size_classes: Iterable[int], *, counted: bool = True) -> None:
        """Note that calls of size classes are the library's.  Local.

        Parameters
        ----------
        operation : str
            The operation.
        size_classes : iterable of int
            As in `closeranks.collectives.arguments.call_key.Agreed`.
        counted : bool
            Whether the number of these calls that is left ends that.
        """
        known = self._known[operation]
        if operation in self.probes and all(map(known.is_library, size_classes)):
            return
        with self._lock:
            for size_class in size_classes:
                known.learn(size_class, counted=counted)
            self._learnt.add(operation)
            self._install(operation)

    def learn_begun(self, operation: str, size_class: int, begun: Begun) -> None:
        """Note that calls with a request of a size class are the library's.  Local.

        Parameters
        ----------
        operation, size_class : str, int
            As for `is_library`.
        begun : Begun
            What is made of the library's request.
        """
        self._begun.setdefault(BEGINS + operation, begun)
        self.learn(BEGINS + operation, [size_class], counted=False)

    def learn_near(
        self, operation: str, size_class: int, near: ShmCall, *, counted: bool = True
    ) -> None:
        """Note that calls of a kind are a kernel's.  Local.

        Parameters
        ----------
        operation : str
            The operation.
        size_class : int
            As for `learn`.
        near : ShmCall
            Runs them; stays alive with this.
        counted : bool
            As for `learn`.
        """
        if operation in self.probes and self._known[operation].runs(size_class, near.kind):
            return
        with self._lock:
            self._known[operation].learn_near(size_class, near, counted=counted)
            self._install(operation)

    def quick(self, operation: str, size_class: int | None, near: ShmCall) -> Callable[..., object]:
        """Give what later calls of a kind will be, for a trial.  Local.

        Parameters
        ----------
        operation : str
            The operation.
        size_class : int or None
            As for `learn`; None where a shortcut knows none.
        near : ShmCall
            Runs them.

        Returns
        -------
        callable
            As one of ``probes``.
        """
        member = self._member()
        known = self._quick.get(near)
        if size_class is None or member is None or (known is None and not is_possible()):
            return _not_known
        if known is None:
            if len(self._quick) == _MOST_QUICK:
                self._quick.clear()
            table = empty_table()
            table[size_class] = 1, 0, near.address, UNCOUNTED.ctypes.data
            uncounted = np.zeros(1, np.int64), self.words[1]  # who tries it has counted the call
            explain = self._raising(operation)
            record = record_of(member, RULES[operation], table, explain, uncounted)
            known = self._quick[near] = _builtin(member, operation.capitalize(), _not_known, record)
        return known

    def calls(self) -> Counter[tuple[str, str]]:
        """Count the calls that took a shortcut, by operation and algorithm.  Local."""
        found = Counter[tuple[str, str]]()
        for name, known in self._known.items():
            operation = name if name in RULES else name.removeprefix(BEGINS)
            found.update({(operation, where): calls for where, calls in known.calls().items()})
        return sum((asked.calls() for asked in self._asked.values()), +found)

    def allow(self, allowed: bool) -> None:
        """Let known calls go straight, or none.  Local; any thread.

        A method that somebody holds on to knows nothing meanwhile: node memory
        may be gone.
        """
        with self._lock:
            self.allowed = allowed = allowed and not self.is_over()
            for asked in self._asked.values():
                asked.allow(allowed)
            if not allowed:
                self._forbid()
                return
            for operation, known in self._known.items():
                if known:
                    self._install(operation)

    def become_child(self) -> None:
        """Let no known call of a forked child go straight.  Local.

        Whoever had the lock is a thread of the parent.
        """
        for one in (self, *self._asked.values()):
            one._lock = threading.RLock()
        self.allow(False)

    def _forbid(self) -> None:
        """Put the communicator's own methods back."""
        for known in self._known.values():
            known.shut()
        member = self._member()
        for method in self._methods.values() if member is not None else ():
            del member.__dict__[method]
        self._methods.clear()
        self.probes.clear()

    def step_back(self) -> None:
        """Replace no methods any more: something else is to come first.  Local."""
        allowed = self.allowed
        self.allow(False)
        self._replaces = False
        self.allow(allowed)

    def keep(self, keeps: bool) -> None:
        """Send calls the long way, or not, that overwrite what they were given.  Local."""
        self._keeps = keeps
        for asked in self._asked.values():
            asked.keep(keeps)
        for operation in self._records:
            self._mark(operation)

    def follow(self, follows: bool) -> None:
        """Send calls that return a request the long way, or not.  Local."""
        self._follows = follows
        for operation in self._records:
            self._mark(operation)

    def _raising(self, operation: str) -> Explain:
        """Give what machine code hands an error of the library's call to."""

        def tell(error: MPI.Exception) -> NoReturn:
            raise self.explain(operation, error)

        return tell

    def _mark(self, operation: str) -> None:
        """Tell machine code which argument it has to look at."""
        overwrites = operation not in _READING
        kept = 0 if self._keeps and overwrites else -1
        if self._follows and operation in self._begun:
            kept = ALL_KEPT
        self._records[operation][0][KEPT] = kept

    def _install(self, operation: str) -> None:
        """Replace a method where that may be, unless a derived class has its own."""
        member, method = self._member(), operation.capitalize()
        if not self.allowed or operation in self.probes or member is None or not is_possible():
            return
        table, explain = self._known[operation].open(), self._raising(operation)
        begun = self._begun.get(operation)
        if begun is not None:
            ShortWait.load()
        rule = RULES[operation if begun is None else operation.removeprefix(BEGINS)]
        record = record_of(member, rule, table, explain, self.words, begun)
        self._records[operation] = record
        self._mark(operation)
        self.probes[operation] = _builtin(member, method, _not_known, record)
        ours = getattr(type(member), method)
        if self._replaces and ours.__module__.startswith("closeranks.collectives."):
            member.__dict__[method] = _builtin(member, method, ours.__get__(member), record)
            self._methods[operation] = method


def class_of_call(demand: CollectiveCall) -> int | None:
    """Give the size class by which a shortcut knows a call, see `Rule`.

    Parameters
    ----------
    demand : CollectiveCall
        A call that went to the library, or a kernel.

    Returns
    -------
    int or None
        None where it knows none.
    """
    if demand.planned or demand.native:
        return None
    return demand.agreed.size_class


def _not_known(*_: object, **__: object) -> object:
    return NotImplemented


def _builtin(
    member: MPI.Intracomm,
    method: str,
    ours: Callable[..., object],
    record: Record,
) -> Callable[..., object]:
    """Make a function that calls the library's method or ours."""
    library = getattr(MPI.Intracomm, method).__get__(member)
    doc = (
        f"{method}(...): see closeranks.collectives.communicator.communicator.Communicator.{method}"
    )
    code = code_cache.address_of(*SHORTCUT)
    return builtin(method, doc, code, FAST | KEYWORDS, (library, ours, *record))


def is_possible() -> bool:
    """Whether compiled code has been loaded: a call is no time to compile."""
    return interpreter.is_at_hand() and are_proven()


def prepare_early() -> None:
    """Load and prove what the disk holds, before a call needs it.

    Local; compiles nothing.
    """
    if interpreter.load_early():
        are_proven()


@cache
def are_proven() -> bool:
    """Tell whether shortcuts read the objects of this interpreter rightly.

    Local.  Loads compiled code.
    """
    if not (are_listed() and is_readable()):
        return False
    from closeranks.collectives.fastpath.shortcut_proof import holds

    return holds()
