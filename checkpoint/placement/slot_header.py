"""The header of a slot, and the name of its file.

A header is JSON, and stands in a slot twice.  Its state says how far a save
has come; `closeranks.checkpoint.memory.slot_file` shows the life of a slot.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from closeranks.checkpoint.placement.stripe_layout import Share, StripeLayout
from closeranks.errors import CheckpointError, Unavailable

#: Name of the checkpoints, with that of the job.
KEY: Final = re.compile(r"[\w.-]{1,100}")
#: That, epoch, group, lane, member, place.
NAMED: Final = re.compile(rf"checkpoint-({KEY.pattern})-([0-9a-f]{{16}})-(\d+)-(\d+)-(\d+)\.(\d)")


def name_of(header: Header, place: int) -> str:
    """Give the name of a slot in its folder.

    Local.

    Parameters
    ----------
    header : Header
        The share.
    place : int
        Which of the share's slots it is.

    Returns
    -------
    str
        The last part of `closeranks.checkpoint.memory.slot_file.path_of`.
    """
    group, lane, member = header.share
    return f"checkpoint-{header.name}-{header.epoch:016x}-{group}-{lane}-{member}.{place}"


def place_of(path: Path) -> int:
    """Give which of the slots of a share one is, by its name.  Local."""
    parts = NAMED.fullmatch(path.name)
    if parts is None:
        raise Unavailable(f"a slot named {path.name}", "look what it is")
    return int(parts[6])


#: States, in their order.
WRITING, WRITTEN, ENCODED, COMMITTED = "writing", "written", "encoded", "committed"
STATES: Final = (WRITING, WRITTEN, ENCODED, COMMITTED)


#: The next ones after it have names of 16 digits, too, or nobody would find them.
_MOST_EPOCH: Final = 1 << 62
_TEXTS: Final = ("name", "run", "state")
_NUMBERS: Final = ("epoch", "generation", "step", "world", "groups")
#: What stands before the text of the layout, which is the last part of a header.
_LAYOUT: Final = b',"layout":'
#: Texts of layouts, with the brace that ends a header -> what they say.
Layouts = dict[bytes, StripeLayout]


@dataclass(frozen=True)
class Header:
    """The header of a slot.

    Attributes
    ----------
    name : str
        Of the checkpoints.
    run : str
        Of the run: 16 digits, the same in all epochs.
    epoch : int
        Between two starts or recoveries: their number, and 32 random bits, for a
        node that comes back may count otherwise.
    generation : int
        Number of the save, counted from the first of the run.
    step : int
        The caller's number.
    state : str
        One of `STATES`.
    world : int
        Ranks that saved.
    groups : int
        Erasure groups of all.
    share : Share
        The share.
    layout : StripeLayout
        Of its group.
    """

    name: str
    run: str
    epoch: int
    generation: int
    step: int
    state: str
    world: int
    groups: int
    share: Share
    layout: StripeLayout

    @property
    def age(self) -> tuple[int, int]:
        """The order of saves of a run: the later, the larger."""
        return self.epoch, self.generation

    def encode(self) -> bytes:
        """Write it as JSON."""
        found = {name: getattr(self, name) for name in (*_TEXTS, *_NUMBERS)}
        found |= {"lane": self.share.lane, "member": self.share.member}
        text = json.dumps(found, separators=(",", ":"))
        return f'{text[:-1]},"layout":{self.layout.text}}}'.encode()

    @classmethod
    def decode(cls, text: bytes, layouts: Layouts | None = None) -> Header:
        """Read a header.

        Local.

        Parameters
        ----------
        text : bytes
            As `encode` has written it.
        layouts : dict of bytes to StripeLayout, optional
            Layouts that were read already, by their text; filled.  All headers of
            a group have the same.

        Returns
        -------
        Header
            Checked.

        Raises
        ------
        CheckpointError
            If the text is no header.
        """
        try:
            front, mark, rest = text.rpartition(_LAYOUT)
            known = (layouts or {}).get(rest) if mark else None
            found = json.loads(text if known is None else front + b"}")
            layout = known or StripeLayout.from_json(found["layout"])
            if layouts is not None and mark:
                layouts[rest] = layout
            share = Share(layout.group, int(found["lane"]), int(found["member"]))
            is_there = 0 <= share.lane < layout.lanes and 0 <= share.member < layout.members
            if not is_there or found["state"] not in STATES:
                raise ValueError(f"share {share}, state {found['state']!r}")
            texts = {name: str(found[name]) for name in _TEXTS}
            numbers = {name: int(found[name]) for name in _NUMBERS}
            if not 0 <= numbers["epoch"] < _MOST_EPOCH:
                raise ValueError(f"epoch {numbers['epoch']:.4g}")
            return cls(**texts, **numbers, share=share, layout=layout)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointError("restore", f"no header of a slot ({error})") from error
