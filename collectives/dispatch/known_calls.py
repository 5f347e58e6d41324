"""Calls that are not read again: those of a form that was read before.

What reading a call finds depends on its form alone, if its arrays share no
memory (`closeranks.collectives.arguments.call_form`).  So the second call of a
form that goes to the library is kept as a `KnownCall`, and later ones go
straight to mpi4py's method.  Only arrays with gaps, and types that mpi4py has
no name for, are copied on the way.

A known call counts down the calls for which the choice holds, as a shortcut
does.  If none is left, or the size class is not known to be the library's, the
chooser is asked, as by a call that is read.  So all ranks count a call alike,
whichever way each of them takes.

In a race a known call that is the library's or a kernel's turn is made here,
too.  A turn of another plan is read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.collectives.arguments import native_handover
from closeranks.collectives.arguments.call_form import SEQUENCES, CallForm, buffer_of
from closeranks.collectives.arguments.collective_call import CollectiveCall
from closeranks.collectives.dispatch.call_errors import tell
from closeranks.collectives.selection.call_options import AUTO, NATIVE, SHARED
from closeranks.comms.buffers import packing
from closeranks.comms.buffers.buffer_spec import Message

if TYPE_CHECKING:
    from closeranks.collectives.arguments.call_key import Agreed
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.selection.choice import Choice

#: So many forms are kept.
_MOST: Final = 1024


class _Copied(NamedTuple):
    """An argument of which the library gets a copy, side by side.

    Attributes
    ----------
    place : int
        Which argument.
    nbytes : int
        Of the copy.
    datatype : MPI.Datatype
        What it is counted in.
    packer : packing.Packer or None
        Copies there and back; None where NumPy is as fast.
    returns : bool
        Whether the copy comes back.
    by_columns : bool
        Whether elements lie side by side by columns, so that they travel so.
    """

    place: int
    nbytes: int
    datatype: MPI.Datatype
    packer: packing.Packer | None
    returns: bool
    by_columns: bool


class KnownCall:
    """What is known of the calls of a form.

    Parameters
    ----------
    demand : CollectiveCall
        One of them.
    arguments : tuple
        What the caller passed; what the form names by identity stays alive.
    copied : list of _Copied
        What the library gets instead of arguments.
    service : Service
        Of the communicator.

    Attributes
    ----------
    agreed, own : Agreed
        What shares the choice, and what is equal on all ranks.
    left : memoryview
        Numbers of calls for which choices hold, by size class.
    size_class : int
        Of the calls.
    pair : bool
        Whether two buffers must share no memory.
    has_views : bool
        Whether two objects may: one is an array of NumPy.
    library : set of int
        Size classes that are the library's as long as there are calls left.
    scale : float
        What turns their time into that of a call of the typical size.
    is_read : bool
        Whether the calls go to a plan for now.
    near : callable or None
        Runs a kernel at once if it can, and tells whether it has.
    run : callable
        Calls the library, given the arguments.
    """

    __slots__ = (
        "_copied",
        "_keeps",
        "_method",
        "agreed",
        "has_views",
        "is_read",
        "left",
        "library",
        "near",
        "own",
        "pair",
        "run",
        "scale",
        "size_class",
    )  # fmt: skip

    def __init__(
        self,
        demand: CollectiveCall,
        arguments: tuple[Any, ...],
        copied: list[_Copied],
        service: Service,
    ) -> None:
        chooser, self.own = service.chooser, demand.agreed
        self.agreed: Agreed = self.own.choice
        self.left = chooser.calls_left(demand.operation).data
        self.size_class = self.own.size_class
        both = demand.source is not None and demand.target is not None
        self.pair = both and not demand.in_place
        self.has_views = any(isinstance(buffer_of(one), np.ndarray) for one in arguments[:2])
        self.library = service.shortcuts.library[demand.operation]
        self.scale = chooser.scaled(self.own, demand.nbytes, 1.0)
        self.is_read = False
        self.near: Callable[..., bool] | None = None
        self._copied = copied
        self._keeps = [one for one in _flat(arguments) if isinstance(one, (MPI.Op, MPI.Datatype))]
        self._method = getattr(MPI.Intracomm, demand.operation.capitalize()).__get__(service.plain)
        self.run: Callable[..., object] = self._run_copied if copied else self._method

    def _run_copied(self, *arguments: Any) -> None:
        """Call the library with copies of what it cannot take."""
        given: list[Any] = list(arguments)
        for place, nbytes, datatype, packer, _, by_columns in self._copied:
            spec = given[place]
            one = spec[0] if type(spec) in SEQUENCES else spec
            one = one.T if by_columns else one
            if packer is None:
                data = one.copy()
            else:
                data = np.empty(nbytes, np.uint8)
                packer.gather(data, one)
            given[place] = [data, datatype]
        self._method(*given)
        for place, _, _, packer, returns, by_columns in self._copied:
            if returns:
                spec, data = arguments[place], given[place][0]
                one = spec[0] if type(spec) in SEQUENCES else spec
                one = one.T if by_columns else one
                if packer is None:
                    one[...] = data
                else:
                    packer.scatter(one, data)


def _flat(arguments: tuple[Any, ...]) -> list[Any]:
    """List arguments, and what lists and tuples among them hold."""
    found: list[Any] = list(arguments)
    for one in found:
        if type(one) in SEQUENCES:
            found += one
    return found


def _copies(demand: CollectiveCall, arguments: tuple[Any, ...]) -> list[_Copied] | None:
    """List what the library gets copies of; None where the form does not tell."""
    source, target = demand.source, demand.target
    parts = [(0, source, False), (1, target, True)]
    if demand.operation == "bcast":
        parts = [(0, source or target, target is not None)]
    found = []
    for place, part, returns in parts:
        if part is None or not part.foreign:
            continue
        array = buffer_of(arguments[place])
        if type(array) is not np.ndarray or not isinstance(part, Message):
            return None
        if part.offset or part.nbytes != part.memory.nbytes or not part.element.plain:
            return None
        by_columns = part.memory.contiguous and not array.flags.c_contiguous
        array = array.T if by_columns else array
        packer = None
        if part.nbytes >= packing.LEAST or part.element.datatype is None:  # NumPy's bytes
            packer = packing.packer(array.shape, array.strides, array.itemsize)
        datatype = part.element.datatype or MPI.BYTE
        found.append(_Copied(place, part.nbytes, datatype, packer, returns, by_columns))
    return None if found and demand.in_place and source is not None else found


def _is_same(given: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    """Tell whether reading has left arguments as they are."""
    pairs = zip(given, arguments, strict=True)
    return all(one is other or (type(one) in (int, list) and one == other) for one, other in pairs)


class KnownCalls:
    """The known calls of one communicator.

    Parameters
    ----------
    service : Service
        Of the communicator.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._met: set[CallForm] = set()
        #: None for forms that are read each time.
        self._known: dict[CallForm, KnownCall | None] = {}

    def learn(
        self, form: CallForm, arguments: tuple[Any, ...], demand: CollectiveCall, name: str
    ) -> None:
        """Note a call that was read; the third one of a form may not be.  Local.

        Calls of a race count, and those of the library.

        Parameters
        ----------
        form : CallForm
            Of the call.
        arguments : tuple
            What the caller passed.
        demand : CollectiveCall
            What was read.
        name : str
            The algorithm.
        """
        known, agreed = self._known.get(form), demand.agreed
        if name != NATIVE and self._service.chooser.calls_left(agreed.operation)[agreed.size_class]:
            return  # a plan, and no race
        if known is not None:
            known.is_read = False
        if form in self._known or not _is_same(demand.arguments, arguments):
            return
        if form in self._met:
            self._known[form] = self._made(arguments, demand)
            return
        if len(self._met) == _MOST:
            self._met.clear()
            self._known.clear()
        self._met.add(form)

    def _made(self, arguments: tuple[Any, ...], demand: CollectiveCall) -> KnownCall | None:
        agreed = demand.agreed
        is_usual = agreed.commutative and agreed.native and not demand.planned
        is_plain = not demand.on_device and demand.divisor() == 1
        has_rules = bool(self._service.family.tuning.ladders)
        if has_rules or not (is_usual and is_plain) or native_handover.are_unlike(demand):
            return None
        copied = _copies(demand, arguments)
        return None if copied is None else KnownCall(demand, arguments, copied, self._service)

    def serve(self, form: CallForm, operation: str, arguments: tuple[Any, ...]) -> str | None:
        """Make a call if it is known.

        Parameters
        ----------
        form : CallForm
            Of the call.
        operation : str
            What is called.
        arguments : tuple
            What the caller passed.

        Returns
        -------
        str or None
            The algorithm; None where nothing was done, since the call has to be read.
        """
        known = self._known.get(form)
        if known is None or (known.is_read and known.left[known.size_class]):
            return None
        if known.pair:
            first, second, *_ = arguments
            first = first[0] if type(first) in SEQUENCES else first
            second = second[0] if type(second) in SEQUENCES else second
            if first is second or (known.has_views and np.may_share_memory(first, second)):
                return None
        service = self._service
        count = service.calls.count  # as `CallCounter.begin`
        number = count[0]
        count[0] = number + 1
        try:
            service.guard.refuse(operation)
            size_class, left = known.size_class, known.left
            if left[size_class] > 0 and size_class in known.library:  # as a shortcut does it
                left[size_class] -= 1
                inside = service.family.notices.inside
                inside.begin()
                try:
                    known.run(*arguments)
                finally:
                    inside.end()
                if operation not in service.shortcuts.probes:
                    service.learning.miss(operation)
                return NATIVE
        except BaseException as error:
            tell(service, number, operation, error)
            raise
        return service.counted(operation, self._make, known, arguments, number=number)

    def _make(self, operation: str, known: KnownCall, arguments: tuple[Any, ...]) -> str:
        """Make a call for which the chooser is to be asked."""
        service = self._service
        choice = service.chooser.choose(known.agreed)
        name, trial = choice.algorithm, choice.trial
        is_tried = trial is not None and trial.winner is None
        near = known.near if name == SHARED and is_tried else None
        known.is_read = name != NATIVE and not is_tried
        if name != NATIVE and near is None:
            return self._read(operation, known, choice, arguments)
        service.shortcuts.keep_only(operation, known.size_class, name)
        if is_tried:
            call = near or known.run
            service.races.serve_known(known.own, choice, known.scale, call, arguments)
            return name
        with service.family.notices.inside:
            known.run(*arguments)
        service.learning.learn_library(known.own, choice)
        return NATIVE

    def _read(
        self, operation: str, known: KnownCall, choice: Choice, arguments: tuple[Any, ...]
    ) -> str:
        """Read a call for which a choice was asked, and do it."""
        service = self._service
        again = partial(service.arguments.read, operation, "", AUTO, arguments)
        demand = again()
        name = service.serve(AUTO, again, demand, choice)
        if name == SHARED and choice.is_tried and known.near is None and _are_arrays(arguments):
            way = service.learning.way_of(demand)
            if way is not None:
                known.near = partial(way.at_once, service.learning.quick_of(demand, way))
        return name


def _are_arrays(arguments: tuple[Any, ...]) -> bool:
    """Tell whether a kernel may take the messages of a call as they are."""
    buffers = map(buffer_of, arguments[:2])
    return all(type(one) is np.ndarray or one is MPI.IN_PLACE for one in buffers)
