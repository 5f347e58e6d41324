"""Points in changes of files: where ranks of a stage are killed, or find no room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from closeranks.checkpoint import checkpointer
from closeranks.checkpoint.erasure.crc32c import Area
from closeranks.checkpoint.memory import slot_locks
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.checkpoint.restore.coding_work import Recoding
from closeranks.checkpoint.saving import flush, job_claim, membership_term
from tests.checkpoint.hearing import Hearing
from tests.checkpoint.stage import Killed, acting, here


class _Open(dict[str, Any]):
    """Checkpointers of several ranks in one process do not know each other."""

    def __contains__(self, key: object) -> bool:
        return False


def set_up(patch: pytest.MonkeyPatch) -> None:
    """Have ranks of stages talk in memory, and meet their fates."""
    patch.setattr(checkpointer, "_OPEN", _Open())
    patch.setattr(checkpointer, "own_job", str)  # names stand alone
    patch.setattr(membership_term, "ControlChannel", Hearing)
    patch.setattr(flush, "ControlChannel", Hearing)
    for name in ("take", "release"):  # they are of processes, and all ranks are in one
        patch.setattr(slot_locks, name, lambda *_: "")
    drawn = SimpleNamespace(token_hex=lambda n: f"{_draw(8 * n):0{2 * n}x}", randbits=_draw)
    patch.setattr(job_claim, "secrets", drawn)
    for owner, name in (
        (Recoding, "_compute"), (Slot, "attach"), (Path, "unlink"), (os, "fsync"), (os, "replace"),
        (os, "pwrite"),
    ):  # fmt: skip
        patch.setattr(owner, name, _between(owner, name))
    patch.setattr(Slot, "write", _torn_header(Slot.write))
    patch.setattr(Area, "put", _torn_copy(Area.put))
    patch.setattr(os, "posix_fallocate", _full(os.posix_fallocate))


def _draw(bits: int) -> int:
    """Draw what would be secret."""
    return here().stage.rng.getrandbits(bits)


def _between(owner: Any, name: str) -> Any:
    """Make points before and after a call."""
    function = getattr(owner, name)
    inner = getattr(function, "__func__", function)

    def called(*arguments: Any, **options: Any) -> Any:
        actor = acting()
        if actor is None:
            return inner(*arguments, **options)
        actor.stage.point(actor, name)
        found = inner(*arguments, **options)
        actor.stage.point(actor, f"{name}-done")
        return found

    return classmethod(called) if inner is not function else called


def _torn_header(write: Callable[..., None]) -> Callable[..., None]:
    """Make points before and after a header, and one in it: part of it is there."""

    def called(slot: Slot, header: Any) -> None:
        actor = acting()
        if actor is None:
            return write(slot, header)
        actor.stage.point(actor, "write")
        memory = slot.file.array
        before = memory[: 2 * slot._room].copy()
        write(slot, header)
        after = memory[: 2 * slot._room].copy()
        try:
            actor.stage.strike(actor, "write-torn")
        except Killed:
            cut = actor.stage.rng.randrange(len(after))
            if actor.stage.rng.random() < 0.5:
                before, after = after, before
            memory[:cut], memory[cut : len(after)] = before[:cut], after[cut:]
            raise
        return actor.stage.point(actor, "write-done")

    return called


def _torn_copy(put: Callable[..., None]) -> Callable[..., None]:
    """Make points before and after a copy, and one in it: part of it is there."""

    def called(area: Area, at: int, source: Any) -> None:
        actor = acting()
        if actor is None:
            return put(area, at, source)
        try:
            actor.stage.point(actor, "put")
        except Killed:
            if not actor.stage.rng.randrange(2):
                put(area, at, source[: actor.stage.rng.randrange(source.size + 1)])
            raise
        return put(area, at, source)

    return called


def _full(reserve: Callable[[int, int, int], None]) -> Callable[[int, int, int], None]:
    """Make a point where a file gets its pages, or none, if there is no room for this rank."""

    def called(handle: int, start: int, nbytes: int) -> None:
        actor = acting()
        if actor is not None:
            actor.stage.point(actor, "reserve")
            if actor.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(handle, start, nbytes)

    return called
