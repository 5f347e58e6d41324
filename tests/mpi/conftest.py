"""Tests on real ranks: one launch, sub-communicators of 1, 2, 3 and 4 ranks.

`closeranks.testing` runs every test here on all ranks of the world at once, and
gives the fixture `comm`. Here are the fixtures that build on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mpi4py import MPI

    import closeranks

HERE = Path(__file__).resolve().parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder to the launch, unless it was asked for by name."""
    asked = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    named = any(path == HERE or HERE in path.parents for path in asked)
    launched = config.getoption("--with-mpi")
    return None if launched or named or HERE not in collection_path.parents else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say of every test here that it needs real ranks, and which share a day has.

    A test is called on 4 ranks every day. Its calls on fewer ranks take turns.
    """
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.mpi)
        size = item.callspec.params.get("comm") if hasattr(item, "callspec") else None
        few = size in (1, 2, 3)
        item.add_marker(pytest.mark.share(18, least=0) if few else pytest.mark.share(6))


@pytest.fixture
def world(comm: MPI.Intracomm | None) -> Iterator[closeranks.Communicator | None]:
    """A `closeranks.Communicator` over `comm`; None on the ranks left out."""
    if comm is None:
        yield None
        return
    import closeranks

    with closeranks.init(comm) as opened:
        yield opened


@pytest.fixture
def name(world: closeranks.Communicator | None) -> Iterator[str]:
    """A name for the checkpoints of this test alone; nothing of it is left behind."""
    import numpy as np

    from closeranks.checkpoint import checkpointer
    from closeranks.checkpoint.memory import slot_file
    from closeranks.comms.shm.shared_folder import folder

    if world is None:  # this rank is not one of the test's
        yield ""
        return
    made = f"test-{world.bcast(np.random.default_rng().integers(1 << 60), 0):x}-{world.size}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointer, "own_job", str)  # it stands alone
        yield made
    world.Barrier()
    for path in [*(path for path, _ in slot_file.found(made)), folder() / f"lock-{made}"]:
        path.unlink(missing_ok=True)
