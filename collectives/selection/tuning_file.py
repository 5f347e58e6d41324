"""Tables for `init`: rules of a user, or what `closeranks tune` found.

``{"allreduce": "ring"}`` takes one algorithm for all sizes; a list of
``{"up_to_bytes": 65536, "algorithm": "native"}``, the last without a limit,
takes one by the bytes of the vector or of one rank's block.  An algorithm that
cannot serve a call is passed over.  A table of `closeranks tune` begins with
``"format"``, see `closeranks.collectives.selection.tuning_table`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from closeranks.collectives.selection.rules import Rules, read_rules
from closeranks.collectives.selection.tuning_table import Tuned, read_tuned
from closeranks.comms import argument
from closeranks.comms.topology.strict_json import load
from closeranks.errors import UsageError

#: Larger files are refused, and files of more values.
MOST_BYTES, MOST_VALUES = 1 << 20, 1 << 16


def tuning(given: str | Path | Mapping[str, Any] | None) -> Rules | Tuned:
    """Read a table.

    Local.

    Parameters
    ----------
    given : path, mapping or None
        A mapping as the module describes, or a JSON file of one.

    Returns
    -------
    Rules or Tuned
        No rules for None.

    Raises
    ------
    UsageError
        With what is wrong where.
    """
    if given is None:
        return Rules()
    try:
        table = given if isinstance(given, Mapping) else _load(Path(given))
    except TypeError:
        problem = f"tuning is {argument.shown(given)}"
        raise UsageError("tuning", problem, "give a path, a mapping, or none") from None
    return read_tuned(dict(table)) if "format" in table else read_rules(table)


def _load(path: Path) -> Mapping[str, Any]:
    """Read a file that a stranger may have put there."""
    try:
        table = load(_text(path), "tuning", max_bytes=MOST_BYTES, max_values=MOST_VALUES)
    except UsageError as error:
        raise UsageError("tuning", f"{path}: {error.problem}", error.remedy) from None
    except (OSError, ValueError) as error:
        raise UsageError("tuning", f"cannot read {path}: {error}", "pass a JSON table") from error
    if not isinstance(table, dict):
        raise UsageError("tuning", f"{path} holds no mapping", 'begin with {"allreduce": ...}')
    return table


def _text(path: Path) -> str:
    """Read a plain file of bounded size; what is no file could go on for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError("tuning", "no plain file", "pass a JSON table")
        found = file.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise UsageError("tuning", f"larger than {MOST_BYTES} bytes", "cut it down")
    return found.decode()
