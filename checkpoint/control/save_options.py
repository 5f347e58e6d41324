"""The arguments of a checkpointer, checked."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from closeranks.checkpoint.memory.run_key import check_name
from closeranks.checkpoint.placement.erasure_groups import MOST
from closeranks.checkpoint.placement.stripe_layout import ALIGNED
from closeranks.comms.numeric_argument import shown, whole
from closeranks.errors import Disagreement, UsageError

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import ControlChannel

#: Bytes of a chunk at least, and at most: its number stands in a header.
_CHUNKS: Final = (4096, 1 << 30)


@dataclass(frozen=True)
class SaveOptions:
    """The arguments that are the same on all ranks.

    Parameters
    ----------
    name, parity, group, keep, on_busy, chunk_bytes
        As `closeranks.checkpoint.Checkpointer` takes them.

    Raises
    ------
    UsageError
        With the one that is wrong (local).
    """

    name: str
    parity: int
    group: int | None
    keep: int
    on_busy: Literal["wait", "skip"]
    chunk_bytes: int

    def __post_init__(self) -> None:
        check_name(self.name)
        bounds = {"parity": (1, MOST - 1), "keep": (2, 9), "chunk_bytes": _CHUNKS}
        if self.group is not None:
            bounds["group"] = (1, MOST)
        for name, (least, most) in bounds.items():
            found = whole("Checkpointer", name, getattr(self, name), least, most)
            object.__setattr__(self, name, found)
        if not isinstance(self.on_busy, str) or self.on_busy not in ("wait", "skip"):
            raise UsageError("Checkpointer", f"on_busy={shown(self.on_busy)}",
                             "give 'wait' or 'skip'")  # fmt: skip
        if self.chunk_bytes % ALIGNED:
            raise UsageError("Checkpointer", f"chunk_bytes={self.chunk_bytes}",
                             f"give a multiple of {ALIGNED}")  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """Give all that ranks compare, as plain JSON.  Local."""
        return asdict(self)


def place_of(name: str, value: Any) -> Path | None:
    """Give a folder as a path, None for none.

    Local.

    Parameters
    ----------
    name : str
        Of the option.
    value : path or None
        As passed.

    Raises
    ------
    UsageError
        If it can be no folder's name.
    """
    if value is None:
        return None
    try:
        text = os.fspath(value)
    except TypeError:
        text = b""
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError("Checkpointer", f"{name}={shown(value)}", "give the path of a folder")
    return Path(text)


def check_step(operation: str, step: Any) -> int:
    """Give the number of a step as a plain one.

    Local.

    Parameters
    ----------
    operation : str
        For the message.
    step : int
        As passed.

    Raises
    ------
    UsageError
        If it is no whole number of 64 bits.
    """
    least, most = -(1 << 63), (1 << 63) - 1
    if type(step) is int and least <= step <= most:
        return step
    return whole(operation, "step", step, least, most)


def agreed_step(channel: ControlChannel, step: Any) -> int | None:
    """Give the number of the step that all ranks ask for, None for any.

    Collective.

    Parameters
    ----------
    channel : ControlChannel
        Between the ranks.
    step : int or None
        As passed.

    Raises
    ------
    UsageError
        On all ranks, if it is no such number on one, or another one.
    """
    own = [0, 0]

    def numbers() -> list[int]:
        if step is not None:
            own[:] = 1, check_step("restore", step)
        return [*own, *(~one for one in own)]  # the least of ~x is that of the largest x

    least = channel.told("restore", numbers, 4, channel.least).tolist()
    if least != [*own, *(~one for one in own)]:
        steps = [
            f"step={one if is_asked else None}" for is_asked, one in channel.gather(own).tolist()
        ]
        raise Disagreement("restore", dict(enumerate(steps)))
    return own[1] if own[0] else None


def check_comm(comm: Any) -> None:
    """Refuse a communicator that is none of this package.

    Local.

    Parameters
    ----------
    comm : Communicator
        As passed.

    Raises
    ------
    UsageError
        If it is another one.
    """
    if not hasattr(comm, "hierarchy") or not hasattr(comm, "epoch"):
        raise UsageError("Checkpointer", f"comm={shown(comm)}", "pass what closeranks.init gives")
