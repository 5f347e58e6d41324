"""Leaves on their way: messages of a state, and their place in old memory.

`Transfer` is driven by the engine like a plan.  If a death ends it in the
middle, memory that the library still reads or writes is kept until it is free,
as after every execution.

`Placing` puts leaves into the memory of the old ones where it can.  Several
old leaves may lie in one memory: an array in several places, or views of it.
The new leaves in their place may be alike, or not.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from closeranks.collectives.arguments.collective_call import BYTE
from closeranks.collectives.engine.bound_plan import Bound
from closeranks.collectives.engine.error_translation import is_gone, is_over, quietly
from closeranks.collectives.engine.execution import Execution
from closeranks.collectives.engine.native_call import Aside
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.plans import message_tags
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.identity import Identity
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import Kind
from closeranks.collectives.replicated.leaf_bytes import Entry, Leaf, entry_of, from_bytes, to_bytes
from closeranks.comms.mpi import messages
from closeranks.comms.wait import Deadline, wait

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import NDArray
    from typing_extensions import Self

    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.plans.schedule import Schedule


#: Steps to find arrays with overlapping bounds to be apart; else they count as one.
_WORK: Final[Any] = 10_000


class Placing:
    """Leaves that stay, and leaves that come.

    Local.

    Parameters
    ----------
    held : mapping of str to object
        Path -> leaf, as it is.
    wanted : mapping of str to Entry
        Path -> leaf, as it is to be.
    unlike : collection of str
        Paths of leaves that come.
    """

    def __init__(
        self, held: Mapping[str, Leaf], wanted: Mapping[str, Entry], unlike: Collection[str]
    ) -> None:
        self._held, self._wanted = held, wanted
        self._spans = _spans(held)
        self._right: defaultdict[int, list[_Span]] = defaultdict(list)
        for path in wanted:
            if path not in unlike:
                self._note(path)

    def put(self, path: str, data: NDArray[np.uint8]) -> Leaf:
        """Make a leaf that has come.

        Parameters
        ----------
        path : str
            Which.
        data : ndarray of uint8
            As `to_bytes` gives them.

        Returns
        -------
        object
            The old one with new contents, unless that would change another one that
            is as it is to be; then, or where it does not fit, something new.
        """
        entry, old = self._wanted[path], self._held.get(path)
        is_shared = any(self._right[span.run] for span in self._spans[path])
        if is_shared and entry_of(old) == entry:  # came with another one already
            new = old
        else:
            new = self._made(entry, data, old, self._others(path) if is_shared else ())
        if new is old:
            self._note(path)
        return new

    def _made(
        self, entry: Entry, data: NDArray[np.uint8], old: Leaf, others: Collection[str]
    ) -> Leaf:
        """Make a leaf in the memory of the old one, or elsewhere if it cannot lie there."""
        is_folded = any(map(_may_be_folded, _memory(old)))
        if not (others or is_folded):
            return from_bytes(entry, data, old)
        was, kept = entry_of(old), to_bytes(old).copy()
        new = from_bytes(entry, data, old)
        is_there = not is_folded or entry_of(new) == entry
        if new is not old or (is_there and all(map(self._is_right, others))):
            return new
        from_bytes(was, kept, old)
        return from_bytes(entry, data, None)

    def _note(self, path: str) -> None:
        """Note that the memory of a leaf holds the right numbers."""
        for span in self._spans[path]:
            self._right[span.run].append(span)

    def _is_right(self, path: str) -> bool:
        return entry_of(self._held[path]) == self._wanted[path]

    def _others(self, path: str) -> tuple[str, ...]:
        """Give the leaves that are right and have memory in common with this one."""
        found = {other.path: None for span in self._spans[path] for other in self._right[span.run]
                 if other.low < span.high and span.low < other.high
                 and np.may_share_memory(span.memory, other.memory, _WORK)}  # fmt: skip
        return tuple(found)


class _Span(NamedTuple):
    """Memory of an array, or of its mask.

    Attributes
    ----------
    run : int
        Spans with different numbers are apart.
    low, high : int
        Its addresses.
    path : str
        Of the leaf.
    memory : ndarray
        The array that lies there.
    """

    run: int
    low: int
    high: int
    path: str
    memory: NDArray[Any]


def _spans(held: Mapping[str, Leaf]) -> defaultdict[str, list[_Span]]:
    """Tell where the leaves lie."""
    found = [_Span(0, *byte_bounds(part), path, part)
             for path, leaf in held.items() for part in _memory(leaf)]  # fmt: skip
    spans: defaultdict[str, list[_Span]] = defaultdict(list)
    run = end = 0
    for span in sorted(found, key=lambda span: span.low):
        run += span.low >= end
        end = max(end, span.high)
        spans[span.path].append(span._replace(run=run))
    return spans


def _may_be_folded(memory: NDArray[Any]) -> bool:
    """Tell whether two elements of an array may lie in one place.  False is certain."""
    reach = memory.itemsize
    for step, length in sorted(zip(map(abs, memory.strides), memory.shape, strict=True)):
        if length > 1 and step < reach:
            return True
        reach += step * (length - 1)
    return False


def _memory(leaf: Leaf) -> Iterator[NDArray[Any]]:
    """Give the arrays that hold the bytes of an array, its mask too."""
    if isinstance(leaf, np.ndarray):
        for part in (np.ma.getdata(leaf), np.ma.getmask(leaf)):
            if isinstance(part, np.ndarray) and part.nbytes:
                yield part


class Expected(NamedTuple):
    """A message that is to come.

    Attributes
    ----------
    source : int
        The sending rank.
    nbytes : int or None
        How long an array is; None for an object.
    """

    source: int
    nbytes: int | None = None


class Transfer(Execution):
    """Messages from rank to rank; a context manager, which waits for them.

    All ranks make one, also ranks without messages: an arrival query counts them.

    Parameters
    ----------
    world : World
        The world that carries the messages.
    sent : iterable of (int, object)
        Targets and their data: an array of uint8 or an object.  Asked for when
        it begins; an exception there ends it.
    expected : iterable of Expected
        Messages to come, of every source in the order in which they are sent.
    deadline : Deadline or None
        When it fails.

    Attributes
    ----------
    operation : str
        "synchronize".
    """

    __slots__ = (
        "_arriving",
        "_come",
        "_data",
        "_expected",
        "_leaving",
        "_sent",
        "_tag",
    )

    def __init__(
        self,
        world: World,
        sent: Iterable[tuple[int, object]],
        expected: Iterable[Expected],
        deadline: Deadline | None,
    ) -> None:
        bound = Bound(
            Plan(Problem("barrier", world.topology), _AWAIT),
            world.rank,
            input=None,
            output=None,
            dtype=BYTE,
            world=Aside(world),  # type: ignore[arg-type]
            events=(self._is_through,),
        )
        self._tag = message_tags.state(world.window)
        self._sent, self._expected, self._come = iter(sent), deque(expected), deque[Any]()
        self._leaving = deque[tuple[int, "MPI.Request", object]]()
        self._arriving: list[MPI.Request] = []
        self._data: NDArray[np.uint8] | None = None
        super().__init__(bound, Identity(world.epoch, -1), deadline=deadline)
        self.operation = "synchronize"

    def __enter__(self) -> Self:
        engine().start(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            engine().wait(self)
        else:
            engine().fail(self, error)

    def take(self) -> Any:
        """Wait for the next message.

        Local.

        Returns
        -------
        object
            As it was sent.

        Raises
        ------
        PeerError, BaseException
            The error that has ended the transfer.
        """
        wait(lambda: bool(self._come) or engine().test(self))
        return self._come.popleft()

    def _is_through(self) -> bool:
        """Advance the messages; tell whether all are done."""
        for target, data in self._sent:
            self._send(target, data)
        while self._expected and not self._come and self._has_come():
            self._expected.popleft()
        while self._leaving and is_over(self._leaving[0][1]):
            self._leaving.popleft()
        return not self._leaving and not self._expected

    def _send(self, target: int, data: object) -> None:
        traffic = self.bound.world.traffic
        if isinstance(data, np.ndarray):
            for part in messages.cut(data.nbytes):
                piece = data[part]
                self._leaving.append((target, traffic.Isend(piece, target, self._tag), piece))
        else:
            self._leaving.append((target, traffic.isend(data, target, self._tag), data))

    def _has_come(self) -> bool:
        """Begin to receive the next message; tell whether it is there."""
        if not self._arriving:
            self._begin(*self._expected[0])
        if self._expected[0].nbytes is None:
            if not self._arriving or not self._arriving[0].Get_status():
                return False
            _, thing = self._arriving.pop().test()
            self._come.append(thing)
            return True
        self._arriving = [request for request in self._arriving if not is_over(request)]
        if self._arriving:
            return False
        self._come.append(self._data)
        self._data = None
        return True

    def _begin(self, source: int, nbytes: int | None) -> None:
        """Post the receives of the next message, once its length is known."""
        traffic = self.bound.world.traffic
        if nbytes is None:
            message = traffic.improbe(source, self._tag)
            if message is not None:
                self._arriving.append(message.irecv())
            return
        self._data = np.empty(nbytes, np.uint8)
        for part in messages.cut(nbytes):
            self._arriving.append(traffic.Irecv(self._data[part], source, self._tag))

    def peers(self, kind: Kind) -> tuple[int, ...]:
        """Return the ranks with messages of a kind under way, ascending."""
        if kind == Kind.RECEIVE:
            return (self._expected[0].source,) if self._arriving else ()
        self._leaving = deque(one for one in self._leaving if not is_gone(one[1]))
        return tuple(sorted({target for target, *_ in self._leaving}))

    def awaited(self) -> tuple[int, ...]:
        """Return the awaited rank, else the ranks that do not take our messages."""
        return (self._expected[0].source,) if self._expected else self.peers(Kind.SEND)

    def fail(self, error: BaseException) -> None:
        """End it with an error, as of every execution."""
        if self.error is None and not self.drained:
            for request in self._arriving:
                quietly(request.Cancel)
        super().fail(error)

    def settled(self) -> bool:
        """Whether MPI holds none of its buffers any more; never blocks."""
        self._leaving = deque(one for one in self._leaving if not is_gone(one[1]))
        self._arriving = [request for request in self._arriving if not is_gone(request)]
        return not self._leaving and not self._arriving and super().settled()


def _await_messages(script: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write the one step."""
    del problem
    script.event(0)
    yield


_AWAIT: Final = Algorithm("messages", _await_messages)
