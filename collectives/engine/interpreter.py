"""Which interpreter runs a plan: compiled code, or the reference in Python.

Both send the same messages, so that ranks need not agree.  Compiling takes
seconds once an installation, loading tenths of a second once a process; the
first rank of a node compiles, and the others load what it left on disk.
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
#: The same of the pass of `closeranks.collectives.refill.refilled_plan`.
REFILL: Final = ("closeranks.collectives.refill.refill_loop", "refill")
#: How long ranks wait for the first one of their node to compile.
_LIMIT_S: Final = 120.0
#: Calls of 20 us without compiled code before it is loaded, which takes 75 ms.
_WORTH_LOADING: Final = 2000


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


def load_early() -> None:
    """Load compiled code if the disk holds it: a call will find it there.  Local."""
    if runs_compiled() and _is_stored():
        is_loaded()


def miss() -> None:
    """Count a call that compiled code would have made shorter; after many, load it.

    Local.  Where no rank runs a plan or a kernel nothing else loads it: on one
    rank, say.  To load it takes as long as so many of these calls.
    """
    _Loaded.missed += 1
    if _Loaded.missed == _WORTH_LOADING:
        signal_handlers.defer_handlers()
        load_early()


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
        code_cache.address_of(*REFILL)
        code_cache.address_of(*SHORTCUT)
    except ImportError:
        return False
    except Exception as error:  # whatever it is, Python can run the plans
        warnings.warn(f"no compiled code, plans run in Python: {error!r}", RuntimeWarning, 2)
        return False
    return True


def _is_stored() -> bool:
    """Whether the disk holds compiled code."""
    try:
        names = REFILL, SHORTCUT
        return loop_is_stored() and all(code_cache.is_stored(*name) for name in names)
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
