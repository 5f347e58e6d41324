"""Which interpreter runs a plan: compiled code, or the reference in Python.

Both send the same messages, so that ranks need not agree.  Compiling takes
seconds once an installation, loading some milliseconds once a process; the
first rank of a node compiles, and the others load what it left on disk.  What
lies there already when a communicator opens is loaded then.
"""

from __future__ import annotations

import warnings
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from closeranks.collectives.engine.execution import execution as execution
from closeranks.collectives.engine.execution_arrays import load_loop, loop_is_stored
from closeranks.collectives.engine.progress_engine import make_way
from closeranks.comms.exit import signal_handlers
from closeranks.comms.jit import code_cache
from closeranks.comms.settings import runs_compiled
from closeranks.comms.wait import Deadline, wait

if TYPE_CHECKING:
    from closeranks.collectives.engine.epoch_world import World

#: Module and name of the function that shortcuts are, see
#: `closeranks.collectives.fastpath.shortcut`; here, for a node compiles it with the loop.
SHORTCUT: Final = ("closeranks.collectives.fastpath.shortcut_code", "shortcut")
#: The same for what waits for requests, see `closeranks.collectives.fastpath.request_wait`.
REQUEST_WAIT: Final = ("closeranks.collectives.fastpath.request_wait_code", "wait_a_moment")
#: The same of the pass of `closeranks.collectives.refill.refilled_plan`.
REFILL: Final = ("closeranks.collectives.refill.refill_loop", "refill")
#: How long ranks wait for the first one of their node to compile.
_LIMIT_S: Final = 120.0
#: Calls of 20 us without compiled code before it is looked for again, which takes 3 ms.
_WORTH_LOADING: Final = 150
#: And before it is compiled, which takes 20 s: once, for all jobs to come.
_WORTH_COMPILING: Final = 50_000


def prepare(world: World, *, together: bool) -> None:
    """Get compiled code for the plans of a world, once.

    Parameters
    ----------
    world : World
        Where plans are about to run.
    together : bool
        Whether all ranks of the world come here before any needs to leave: then
        they wait for the first rank of their node.  Else local; Python runs the
        plans until compiled code is there.

    Raises
    ------
    Revoked
        If the world is revoked meanwhile.
    UsageError
        If ``CLOSERANKS_INTERPRETER`` names none (local).
    """
    if world.compiled is not None:
        return
    signal_handlers.defer_handlers()
    if not runs_compiled():
        found = False
    elif world.node.rank == 0 or _Loaded.tried:
        found = is_loaded()
    else:
        if not (world.has_compiled or (together and _is_there(world))):
            return
        found = is_loaded()
    world.compiled = found
    if world.node.rank == 0:
        world.tell_compiled()


def load_early() -> bool:
    """Load compiled code if the disk holds it: a call will find it there.

    Local, some milliseconds; compiles nothing.  False if it is not there.
    """
    with code_cache.loading():
        return runs_compiled() and _is_stored() and is_loaded()


def miss() -> None:
    """Count a call that compiled code would have made shorter; after many, get it.

    Local.  Another process may have compiled it since `init`, and where no rank
    runs a plan or a kernel nothing else does: on one rank, say.
    """
    _Loaded.missed += 1
    if _Loaded.missed == _WORTH_LOADING:
        signal_handlers.defer_handlers()
        load_early()
    elif _Loaded.missed == _WORTH_COMPILING and runs_compiled():
        signal_handlers.defer_handlers()
        is_loaded()


def is_at_hand() -> bool:
    """Whether this process has compiled code already.  Local, quick."""
    return _Loaded.tried and is_loaded()


class _Loaded:
    """Whether this process has tried to load compiled code, and calls without it."""

    tried = False
    missed = 0


@cache
def is_loaded() -> bool:
    """Load compiled code, compiling it where nobody has; False if it cannot be.

    Local.  Takes seconds the first time an installation does it.
    """
    _Loaded.tried = True
    try:
        load_loop()
        for function in (SHORTCUT, REQUEST_WAIT, REFILL):
            code_cache.address_of(*function)
    except ImportError:
        return False
    except Exception as error:  # whatever it is, Python can run the plans
        warnings.warn(f"no compiled code, plans run in Python: {error!r}", RuntimeWarning, 2)
        return False
    return True


def _is_stored() -> bool:
    """Whether the disk holds compiled code."""
    try:
        functions = (SHORTCUT, REQUEST_WAIT, REFILL)
        return loop_is_stored() and all(code_cache.is_stored(*one) for one in functions)
    except ImportError:  # told by is_loaded
        return False


def _is_there(world: World) -> bool:
    """Wait for the first rank of this node to compile, unless that is done.

    What is in flight goes on.
    """
    if _is_stored():
        return True
    with code_cache.loading():
        wait(
            lambda: world.has_compiled,
            progress=partial(make_way, world),
            abort=lambda: world.check("compile"),
            deadline=Deadline(_LIMIT_S),
        )
    return world.has_compiled
