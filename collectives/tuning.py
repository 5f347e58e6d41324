"""Tables that say which algorithm to take: a mapping, or a JSON file of one.

``{"allreduce": "ring"}`` takes one algorithm for all sizes; a list of
``{"up_to_bytes": 65536, "algorithm": "native"}``, the last without a limit,
takes one by the bytes of the vector or of one rank's block.  An algorithm that
cannot serve a call is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from closeranks.collectives.context import AUTO, known_name
from closeranks.errors import UsageError

#: Larger files are refused unread.
MOST_BYTES = 1 << 20
_UNLIMITED = float("inf")
Rules = tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Tuning:
    """Rules by operation.

    Attributes
    ----------
    rules : mapping of str to tuple of (float, str)
        Operation -> (largest size in bytes, algorithm), ascending.
    """

    rules: Mapping[str, Rules] = field(default_factory=dict)

    def name(self, operation: str, nbytes: int) -> str | None:
        """Give the algorithm for a call, or None to choose freely.

        Parameters
        ----------
        operation : str
            For instance ``"allreduce"``.
        nbytes : int
            Bytes of the vector or of one rank's block.

        Returns
        -------
        str or None
            "native" or a name of the catalogue.
        """
        for limit, name in self.rules.get(operation, ()):
            if nbytes <= limit:
                return None if name == AUTO else name
        return None

    def table(self) -> dict[str, Any]:
        """Write the rules as `tuning` reads them."""
        return {
            operation: [
                {"algorithm": name} | ({} if limit == _UNLIMITED else {"up_to_bytes": limit})
                for limit, name in rules
            ]
            for operation, rules in self.rules.items()
        }


def tuning(given: str | Path | Mapping[str, Any] | None) -> Tuning:
    """Read a table.

    Local.

    Parameters
    ----------
    given : path, mapping or None
        A mapping as the module describes, or a JSON file of one.

    Returns
    -------
    Tuning
        Empty for None.

    Raises
    ------
    UsageError
        With what is wrong where.
    """
    if given is None:
        return Tuning()
    table = given if isinstance(given, Mapping) else _load(Path(given))
    return Tuning({operation: _rules(operation, said) for operation, said in table.items()})


def _load(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError("tuning", f"{path} is larger than {MOST_BYTES} bytes", "cut it down")
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError("tuning", f"cannot read {path}: {error}", "pass a JSON table") from error
    if not isinstance(table, dict):
        raise UsageError("tuning", f"{path} holds no mapping", 'begin with {"allreduce": ...}')
    return table


def _rules(operation: str, said: object) -> Rules:
    if isinstance(said, str):
        return ((_UNLIMITED, _name(operation, said)),)
    if not isinstance(said, Sequence):
        raise UsageError("tuning", f"{operation}: {said!r}", "a name, or a list of rules")
    rules: list[tuple[float, str]] = []
    for rule in said:
        if not isinstance(rule, Mapping) or set(rule) - {"up_to_bytes", "algorithm"}:
            raise UsageError("tuning", f"{operation}: a rule {rule!r}",
                             'write {"up_to_bytes": 65536, "algorithm": "native"}')  # fmt: skip
        limit = rule.get("up_to_bytes", _UNLIMITED)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit < 0:
            raise UsageError("tuning", f"{operation}: up_to_bytes {limit!r}", "0 or more")
        if rules and limit <= rules[-1][0]:
            problem = f"{operation}: {limit} after {rules[-1][0]}"
            raise UsageError("tuning", problem, "give ascending limits")
        rules.append((limit, _name(operation, rule.get("algorithm"))))
    return tuple(rules)


def _name(operation: str, name: object) -> str:
    if not isinstance(name, str):
        raise UsageError("tuning", f"{operation}: algorithm {name!r}", "a name")
    return name if name == AUTO else known_name(operation, name, "tuning")
