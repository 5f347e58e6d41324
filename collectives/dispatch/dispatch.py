"""How the calls of one communicator are served: by the library or by a plan.

A call goes from `Service.block` straight on: it is counted, its arguments are
read, its algorithm is chosen, it is run, and it is noted in the statistics.
Its key is made once, see
`closeranks.collectives.arguments.collective_call.CollectiveCall.key`.

`Service` serves.  It asks `ArgumentReading` and `AlgorithmChoice`, and the
former asks the latter.  Every call runs through all three, so they are in one
file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mpi4py import MPI

from closeranks.collectives.arguments import argument_readers, native_handover
from closeranks.collectives.arguments.call_form import form_of
from closeranks.collectives.arguments.call_key import Agreed
from closeranks.collectives.arguments.collective_call import CollectiveCall
from closeranks.collectives.builders.catalogue import find
from closeranks.collectives.dispatch.argument_check import agree_equal, check_sizes, described
from closeranks.collectives.dispatch.call_errors import careful_of, tell
from closeranks.collectives.dispatch.device_collectives import (
    ELSEWHERE,
    DeviceCalls,
    DevicePipeline,
    in_time,
)
from closeranks.collectives.dispatch.kernel_speed import measure
from closeranks.collectives.dispatch.known_calls import KnownCalls
from closeranks.collectives.dispatch.persistent_creation import persistent
from closeranks.collectives.dispatch.persistent_starts import listening, starts
from closeranks.collectives.dispatch.plan_cache import PlanCache
from closeranks.collectives.dispatch.race_calls import RaceCalls
from closeranks.collectives.dispatch.request import Outstanding, Request, origin_of
from closeranks.collectives.dispatch.shortcut_learning import ShortcutLearning
from closeranks.collectives.engine import interpreter
from closeranks.collectives.engine.call_guard import WHOLE, CallGuard, Counters, Statistics
from closeranks.collectives.engine.error_translation import ended, explained
from closeranks.collectives.engine.execution import Execution, execution
from closeranks.collectives.engine.native_call import begin, followed
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.fastpath.shm_call import lacks_kernel
from closeranks.collectives.plans.identity import Identity
from closeranks.collectives.selection import call_options
from closeranks.collectives.selection.call_options import ACTIVE, AUTO, NATIVE, SHARED
from closeranks.collectives.selection.choice import Choice
from closeranks.collectives.selection.chooser import Chooser
from closeranks.comms.exit import signal_handlers
from closeranks.comms.lazy import lazy
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.arguments.call_form import CallForm
    from closeranks.collectives.dispatch.persistent_operation import Persistent
    from closeranks.collectives.engine.bound_plan import Bound
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.init_state import Family
    from closeranks.collectives.fastpath.shortcut import Shortcuts
    from closeranks.comms.liveness.call_counter import CallCounter, PendingCalls
    from closeranks.comms.wait import Deadline

#: The most kinds of calls that are remembered with an algorithm that can serve them.
_MOST_FITTING: Final = 1024

_T = TypeVar("_T")


#: Operation, root, whether operands commute, whether the library can do it, algorithm: all that
#: `Algorithm.objection` looks at, but for the topology.
_Fit = tuple[str, int, bool, bool, str]


def _fit(demand: CollectiveCall, name: str) -> _Fit:
    return demand.operation, demand.root, demand.commutative, demand.native is None, name


class AlgorithmChoice:
    """Which algorithm serves a call, and within which time.

    Parameters
    ----------
    family : Family
        Options of the communicator.
    chooser : Chooser
        Knows prices and trials.
    shortcuts : Shortcuts
        Know which calls are the library's.
    bindings : callable
        Gives the bound plans; collective at first use.
    """

    def __init__(
        self,
        family: Family,
        chooser: Chooser,
        shortcuts: Shortcuts,
        bindings: Callable[[], PlanCache],
    ) -> None:
        self._family, self._chooser, self._shortcuts = family, chooser, shortcuts
        self._bindings = bindings
        self._fitting: set[_Fit] = set()

    def wanted(self, operation: str, algorithm: str) -> str:
        """Give the algorithm that the call or a ``using`` block asks for."""
        if not isinstance(algorithm, str) or algorithm != AUTO:
            return call_options.known_name(operation, algorithm, operation)
        options = call_options.active(self._family)
        return options.algorithms.get(operation, AUTO) if options else AUTO

    def wire(self) -> str | None:
        """Give the type in which half-precision sums travel, None for their own."""
        options = call_options.active(self._family)
        return None if options is None else options.wire

    def is_timed(self) -> bool:
        """Whether a call has a deadline.  Local."""
        return self.deadline() is not None

    def deadline(self) -> Deadline | None:
        """Start the clock of a call, if it has one; most programs set none."""
        if self._family.timeout_s is None and not ACTIVE.get():
            return None
        return call_options.deadline(self._family)

    def decide(
        self, demand: CollectiveCall, algorithm: str, form: str = ""
    ) -> tuple[str, Choice | None]:
        """Choose; the same on every rank.

        Gives the algorithm, and the chooser's choice where it is that of a blocking
        call.
        """
        is_free = algorithm is AUTO and not ACTIVE.get()
        if not is_free and isinstance(algorithm, str) and self._fits(demand, algorithm):
            return algorithm, None
        wanted = AUTO if is_free else self.wanted(demand.operation, algorithm)
        if wanted != AUTO:
            return self._insist(demand, wanted), None
        return self._choose(demand, form)

    def _insist(self, demand: CollectiveCall, name: str) -> str:
        """Return an algorithm that was asked for, or say why it cannot be."""
        if self._fits(demand, name):
            return name
        if objection := self._objection(demand, name):
            raise UsageError(demand.operation, f"algorithm {name!r} cannot: {objection}",
                             "pass algorithm='auto'")  # fmt: skip
        self._note_fitting(demand, name)
        return name

    def _fits(self, demand: CollectiveCall, name: str) -> bool:
        """Tell whether it is known that an algorithm can serve a call, of whatever size."""
        return not demand.planned and _fit(demand, name) in self._fitting

    def _note_fitting(self, demand: CollectiveCall, name: str) -> None:
        """Note that an algorithm can serve calls of this kind, so that none asks again."""
        if len(self._fitting) == _MOST_FITTING:
            self._fitting.clear()
        if not demand.planned:  # else each call has its own reason
            self._fitting.add(_fit(demand, name))

    def _objection(self, demand: CollectiveCall, name: str) -> str | None:
        """Say why an algorithm cannot serve a call, or None."""
        if name == NATIVE:
            exact = self._family.deterministic
            return "this communicator is deterministic" if exact else demand.native
        if name in call_options.AMONG_DEVICES:
            return ELSEWHERE
        if demand.planned:
            return demand.planned
        return find(demand.operation, name).objection(self._bindings().problem(demand))

    def _choose(self, demand: CollectiveCall, form: str) -> tuple[str, Choice | None]:
        family, blocking, agreed = self._family, not form, demand.agreed
        if demand.planned:
            if family.deterministic:
                raise UsageError(demand.operation, f"{demand.planned}, and a deterministic "
                                 "communicator leaves nothing to the library",
                                 "use another type or op")  # fmt: skip
            if blocking and self._is_library(agreed):
                self._chooser.count(agreed)
            return NATIVE, None
        if not (blocking or family.threaded or family.deterministic or demand.native):
            return NATIVE, None
        has_rules = bool(family.tuning.ladders)
        forced = family.tuning.name(demand.operation, demand.nbytes) if has_rules else None
        if forced is not None and not self._objection(demand, forced):
            return forced, None
        if form == "I" and self.is_brief(agreed):
            return NATIVE, None
        if not blocking:
            known = self._chooser.settled(agreed)
            name = known.unattended(persistent=form == "_init")
        elif not agreed.commutative and self._is_library(agreed):
            self._chooser.count(agreed)
            return NATIVE, None  # as on the ranks whose buffers let them take the shortcut
        else:
            choice = self._chooser.choose(agreed)
            return self.chosen(demand, choice), choice
        return self._fitted(demand, name), None

    def chosen(self, demand: CollectiveCall, choice: Choice) -> str:
        """Give the algorithm of a choice of the chooser for a call, or what can serve it."""
        name, agreed = choice.algorithm, demand.agreed
        if agreed.commutative and agreed.native:
            self._shortcuts.keep_only(agreed.operation, agreed.size_class, name)
        is_free = choice.source != "forced" and not choice.is_tried
        if name == SHARED and is_free and lacks_kernel(demand) and self._chooser.allows(agreed):
            return NATIVE
        return self._fitted(demand, name)

    def _fitted(self, demand: CollectiveCall, name: str) -> str:
        """Give an algorithm, or the cheapest one if that cannot serve a call."""
        if name != NATIVE and not self._fits(demand, name):
            problem = self._bindings().problem(demand)
            if find(demand.operation, name).objection(problem):
                return self._chooser.cheapest(problem)
            self._note_fitting(demand, name)
        return name

    def _is_library(self, agreed: Agreed) -> bool:
        """Whether shortcuts send calls of a size class to the library, whatever the op."""
        known = agreed.native and self._shortcuts.is_library(agreed.operation, agreed.size_class)
        return bool(known and self._chooser.calls_left(agreed.operation)[agreed.size_class])

    def is_brief(self, agreed: Agreed) -> bool:
        """Tell whether the library serves all calls of a kind that return a request.

        Local; the same on every rank.
        """
        is_brief = not self._family.threaded or self._chooser.is_brief(agreed)
        return is_brief and self._chooser.allows(agreed)


class ArgumentReading:
    """The arguments of calls, read, and compared where the family asks for it.

    Parameters
    ----------
    plain : MPI.Intracomm
        The communicator as mpi4py knows it.
    family : Family
        Options of the communicator.
    guard : CallGuard
        Refuses calls.
    reading : PendingCalls
        Notes that arguments are being read.
    choice : AlgorithmChoice
        Knows which options hold.

    Attributes
    ----------
    hears_starts : bool
        Whether calls look first for starts that mpi4py has made.
    """

    def __init__(
        self,
        plain: MPI.Intracomm,
        family: Family,
        guard: CallGuard,
        reading: PendingCalls,
        choice: AlgorithmChoice,
    ) -> None:
        self._plain, self._rank, self._size = plain, plain.rank, plain.size
        self._family, self._guard, self._reading, self._choice = family, guard, reading, choice
        self.hears_starts = False

    def read(
        self, operation: str, form: str, algorithm: str, arguments: tuple[Any, ...]
    ) -> CollectiveCall:
        """Read the arguments of a call; collective where arguments are compared."""
        if form and self.hears_starts:
            starts().look()
        self._guard.refuse(operation)
        demand = (self._compared(operation, form, algorithm, arguments) if self._family.check
                  else self._read(operation, form, arguments))  # fmt: skip
        if self._family.attempt is not None:
            self._family.attempt.keep(demand)
        return demand

    def _read(self, operation: str, form: str, arguments: tuple[Any, ...]) -> CollectiveCall:
        """Read the arguments; sums of half precision travel as a ``using`` block says."""
        wide = bool(ACTIVE.get()) and self._choice.wire() is not None
        reading = self._reading
        reading.begin()
        try:
            return argument_readers.read(
                operation, self._rank, self._size, arguments, wide=wide, form=form
            )
        finally:
            reading.end()

    def _compared(
        self, operation: str, form: str, algorithm: str, arguments: tuple[Any, ...]
    ) -> CollectiveCall:
        """Read the arguments and compare them with those of all ranks."""
        demand: CollectiveCall | None = None
        problem: UsageError | None = None
        try:
            demand = self._read(operation, form, arguments)
            wanted = self._choice.wanted(operation, algorithm)
            said = described(demand, wanted, form)
        except UsageError as error:
            problem, said = error, f"a call that is wrong: {error}"
        signal_handlers.defer_handlers()
        careful = careful_of(self._plain, self._family)
        agree_equal(careful, operation, said)
        if demand is None or problem is not None:
            raise problem or UsageError(operation, "unreadable", "pass an array")
        fits = check_sizes(careful, demand) or "sizes that fit"
        agree_equal(careful, operation, fits)
        return demand


class Service:
    """Serves one communicator of a family.

    Parameters
    ----------
    plain : MPI.Intracomm
        The communicator as mpi4py knows it; borrowed.
    family : Family
        What all communicators of one `init` share.
    open_world : callable
        Gives the world that carries plans; collective, called when the first
        plan is needed.
    chooser : Chooser
        Who chooses.
    shortcuts : Shortcuts
        Of the communicator.
    calls : CallCounter
        Counts its calls.

    Attributes
    ----------
    plain, family, chooser, shortcuts, calls
        As given.
    rank, size : int
        Of ``plain``.
    counters : Counters
        What was done.
    guard, outstanding : CallGuard, Outstanding
        Refuses calls; what the library has under way.
    choice, arguments : AlgorithmChoice, ArgumentReading
        Choose the algorithms of calls, and read their arguments.
    learning : ShortcutLearning
        Tells the shortcuts what they may serve.
    races : RaceCalls
        Makes calls that are timed.
    """

    def __init__(
        self,
        plain: MPI.Intracomm,
        family: Family,
        open_world: Callable[[], World],
        chooser: Chooser,
        shortcuts: Shortcuts,
        calls: CallCounter,
    ) -> None:
        self.family, self.counters, self.calls = family, Counters(), calls
        self._open_world = open_world
        self._take(plain, chooser, shortcuts)

    def _take(self, plain: MPI.Intracomm, chooser: Chooser, shortcuts: Shortcuts) -> None:
        self.plain, self.chooser, self.shortcuts = plain, chooser, shortcuts
        self.rank, self.size, self.outstanding = plain.rank, plain.size, Outstanding()
        self.learning = ShortcutLearning(self.family, chooser, shortcuts, lambda: self.world)
        self.shortcuts.explain = self.explained
        self.shortcuts.words = self.calls.word, self.family.notices.inside.word
        self.family.admit(shortcuts)
        self.guard = CallGuard(self.family, partial(self.__dict__.get, "world"))
        self.shortcuts.is_over = self.guard.is_over
        self.choice = AlgorithmChoice(self.family, chooser, shortcuts, lambda: self.bindings)
        self.arguments = ArgumentReading(
            plain, self.family, self.guard, self.calls.reading, self.choice
        )
        self.arguments.hears_starts = "block" in self.__dict__  # see `listen`
        chooser.measure = partial(measure, self, may_compile=True)
        self._known, self.races = KnownCalls(self), RaceCalls(self)

    def move(self, plain: MPI.Intracomm, chooser: Chooser, shortcuts: Shortcuts) -> None:
        """Serve what has taken the communicator's place; keep nothing bound.  Local."""
        self.shut()
        self.counters.add(self.shortcuts.calls())
        for bound in ("world", "bindings", "relay", "open_plans"):
            self.__dict__.pop(bound, None)
        self._take(plain, chooser, shortcuts)

    @lazy
    def world(self) -> World:
        """Give what carries the plans; collective at first use."""
        opened = self._open_world()
        self.chooser.is_open = True
        return opened

    @lazy
    def bindings(self) -> PlanCache:
        """Bound plans that are kept."""
        return PlanCache(self.world)

    @lazy
    def relay(self) -> DevicePipeline:
        """Who serves blocking calls where there are devices."""
        calls = DeviceCalls(lambda: self.world, self.family)
        return DevicePipeline(self.plain, self.family.reaches_devices, self.counters.device, calls)

    @property
    def careful(self) -> MPI.Intracomm:
        """Give ``plain`` for what is set up: its calls end where a rank has given up."""
        return careful_of(self.plain, self.family)

    def block(self, operation: str, algorithm: str, *arguments: Any) -> None:
        """Serve a blocking call."""
        probes = self.shortcuts.probes_of.get(algorithm) if isinstance(algorithm, str) else None
        probe = probes and probes.get(operation)
        if probe and probe(*arguments) is None:
            return
        started, form, family, name = time.perf_counter(), None, self.family, None
        is_usual = algorithm is AUTO and self.shortcuts.allowed  # no option is to be looked at
        if is_usual and family.attempt is None and not family.devices:
            form = form_of(operation, arguments)
        try:
            if form is not None:
                name = self._known.serve(form, operation, arguments)
            if name is None:
                name = self.counted(operation, self._block, algorithm, arguments, form)
        except MPI.Exception as error:
            raise self.explained(operation, error)  # noqa: B904 - which knows its cause
        self.counters.count(operation, name, time.perf_counter() - started)

    def _block(
        self,
        operation: str,
        algorithm: str,
        arguments: tuple[Any, ...],
        form: CallForm | None,
    ) -> str:
        """Serve a blocking call that takes no shortcut; returns the algorithm."""
        demand = self.arguments.read(operation, "", algorithm, arguments)
        again = partial(self.arguments.read, operation, "", algorithm, arguments)
        if not self.family.devices:
            name = self.serve(algorithm, again, demand)
            if form is not None:
                self._known.learn(form, arguments, demand, name)
            return name
        serve = partial(self.serve, algorithm, again)
        wanted = self.choice.wanted(operation, algorithm)
        return self.relay.serve(demand, wanted, serve, timed=self.choice.is_timed())

    def explained(self, operation: str, error: MPI.Exception) -> Exception:
        """Return what the user is told of an error of the library's own call.  Local."""
        return explained(operation, self.plain, self.family.world, error)

    def begin(self, operation: str, algorithm: str, *arguments: Any) -> Request:
        """Start an ``I`` call."""
        return self.counted(operation, self._begin, algorithm, arguments)

    def _begin(self, operation: str, algorithm: str, arguments: tuple[Any, ...]) -> Request:
        demand = self.arguments.read(operation, "I", algorithm, arguments)
        demand.background = True
        name, _ = self.choice.decide(demand, algorithm, "I")
        self.counters.count(operation, name)
        if demand.on_device:
            self.counters.device[WHOLE] += 1
        request = self.request(demand, name)
        if name == NATIVE and algorithm is AUTO and self.choice.is_brief(demand.agreed):
            self.learning.remember_begun(demand, self)
        if self.family.attempt is not None:
            self.family.attempt.follow(request)
        return request

    def prepare(
        self, operation: str, algorithm: str, *arguments: Any,
        info: MPI.Info = MPI.INFO_NULL, shown: bool = True,
    ) -> Persistent:  # fmt: skip
        """Make a persistent operation; one that is ``shown``, mpi4py may start."""
        make = partial(persistent, self, info=info, shown=shown)
        return self.counted(operation, make, algorithm, arguments)

    def listen(self) -> None:
        """Hear of starts that mpi4py makes before each call from now on."""
        if "block" not in self.__dict__:
            self.block = listening(self.block)  # type: ignore[method-assign]
            self.arguments.hears_starts = True
            self.shortcuts.step_back()

    def counted(
        self,
        operation: str,
        serve: Callable[..., _T],
        *arguments: Any,
        number: int | None = None,
    ) -> _T:
        """Count a call and serve it; where bad input keeps it from that, all hear.

        Parameters
        ----------
        operation : str
            What is called.
        serve : callable
            Takes it, and the ``arguments``.
        *arguments
            For it.
        number : int, optional
            What `calls` has given it, if it is counted already.

        Returns
        -------
        object
            What it gives.
        """
        if number is None:
            count = self.calls.count  # as `CallCounter.begin`
            number = count[0]
            count[0] = number + 1
        with signal_handlers.DeferredHandlers():
            try:
                return serve(operation, *arguments)
            except BaseException as error:
                tell(self, number, operation, error)
                raise

    def refused(self, number: int, operation: str, error: Exception) -> None:
        """Tell that this rank has refused a call: others may be in it.  Local.

        Parameters
        ----------
        number : int
            What `calls` has given it.
        operation : str
            What it was.
        error : Exception
            What is wrong with it.
        """
        self.family.notices.refuse(self.calls, number, operation, error)

    def serve(
        self,
        algorithm: str,
        again: Callable[[], CollectiveCall],
        demand: CollectiveCall,
        choice: Choice | None = None,
    ) -> str:
        """Do a call, and learn from it; ``again`` reads it.  Returns the algorithm.

        With a ``choice`` that the chooser was asked for already, as that says.
        """
        if choice is None:
            name, choice = self.choice.decide(demand, algorithm)
        else:
            name = self.choice.chosen(demand, choice)
        if choice is not None and choice.is_tried:
            self.races.serve(demand, name, choice, again)
            return name
        if name not in (NATIVE, SHARED) and not self.family.devices:
            # A plan on the host, and nothing to learn from its time.
            if self.world.compiled is None:
                interpreter.prepare(self.world, together=True)
            self._launch(demand, name, waits=True)
            return name
        if choice is not None and self.chooser.has_looked and self.world.compiled is None:
            interpreter.prepare(self.world, together=True)
        timed = self.choice.is_timed()
        if name == NATIVE and not (timed or demand.on_device):
            self._hand_over(demand)
        else:
            self.run(name, self.prepared(demand, name, timed=timed))
        if not timed:
            self.learning.remember(demand, name, algorithm, choice)
        return name

    def _hand_over(self, demand: CollectiveCall) -> None:
        """Do a call by the library."""
        method, arguments, finish = native_handover.hand_over(demand)
        call, inside = getattr(MPI.Intracomm, method), self.family.notices.inside
        inside.begin()
        try:
            call(self.plain, *arguments)
            if finish is not None:
                finish()
        finally:
            inside.end()

    def run(self, name: str, serve: Callable[[], object]) -> None:
        """Run what was prepared; calls of the library are noted while they are under way."""
        if name != NATIVE:
            serve()
            return
        with self.family.notices.inside:
            serve()

    def prepared(
        self, demand: CollectiveCall, name: str, *, timed: bool, races: bool = False
    ) -> Callable[[], object]:
        """Prepare all of a call that later calls of its kind will not have to do.

        In a race also what lets it run as these will.
        """
        if name == NATIVE and not timed:
            return in_time(
                demand,
                lambda: native_handover.ready(
                    self.plain, native_handover.hand_over(demand, straight=True)
                ),
            )
        if name == SHARED and not timed:
            way = self.learning.way_of(demand)
            if way is not None and not self.world.node_memory.turns:
                if self.world.compiled is None:
                    interpreter.prepare(self.world, together=True)  # shortcuts come with it
                quick = self.learning.quick_of(demand, way) if races else None
                if demand.on_device:
                    return in_time(demand, lambda: way.ready(demand, quick))
                return way.ready(demand, quick)
        if name not in (NATIVE, SHARED):
            interpreter.prepare(self.world, together=True)
        return lambda: self._launch(demand, name, waits=True)

    def request(self, demand: CollectiveCall, name: str, bound: Bound | None = None) -> Request:
        """Start an operation and return; ``bound`` is used instead of a kept one."""
        if name == NATIVE and not self.choice.is_timed():
            self.guard.refuse_late(demand.operation)
            given = native_handover.hand_over(demand)
            if given.finish is None:
                take = partial(
                    Request.of_library,
                    origin=origin_of(self, demand.operation),
                    keeps=given.arguments,
                )
                begun = begin(self.family.world, self.plain, demand.operation, given, take)
                return self.outstanding.note(begun)
        told = partial(ended, demand.operation, self.family, self.family.world)
        return Request.of_plan(self._launch(demand, name, bound), told)

    def _launch(
        self, demand: CollectiveCall, name: str, bound: Bound | None = None, *, waits: bool = False
    ) -> Execution:
        """Start a plan, or an operation that the engine follows; then the clock.

        From its number on the others wait for it, whatever a signal's handler raises.
        """
        driver, number, begun = engine(), None, None
        alone = name == NATIVE and "world" not in self.__dict__  # a rank may follow it alone
        world = self.family.world if alone else self.world
        try:
            if name == NATIVE:
                begun = followed(world, self.plain, demand, self.choice.deadline())
                self.outstanding.follow(begun)
            else:
                bound = self._bound(demand, name, bound)
                number = world.sequence()  # noted before Python looks for signals again
                begun = self._execution(bound, Identity(world.epoch, number))
            driver.start(begun, background=self.family.threaded and not waits)
            if waits:
                driver.wait(begun)
        except BaseException:
            if begun is not None:
                driver.leave(begun)
            elif number is not None:
                world.revoke()
            raise
        return begun

    def _bound(self, demand: CollectiveCall, name: str, bound: Bound | None) -> Bound:
        """Give the plan of a call with its arrays."""
        if self.world.compiled is None:
            interpreter.prepare(self.world, together=False)
        if bound is None:
            bound, sent = self.bindings.take(demand, name)
            self.counters.count_sent(sent)
        else:
            self.bindings.tie(bound, demand)
        return bound

    def _execution(self, bound: Bound, identity: Identity) -> Execution:
        return execution(bound, identity, deadline=self.choice.deadline())

    def statistics(self) -> Statistics:
        """Give the counters as they stand.  Local."""
        return self.counters.freeze(self.shortcuts.calls())

    def shut(self, why: str = "the communicator is closed") -> None:
        """Serve no more calls; let go of the callers' memory.  Local."""
        self.guard.shut(why)
        self.chooser.close()
        self.family.dismiss(self.shortcuts)
        if "bindings" in self.__dict__:
            self.bindings.clear()
