"""Rules: which algorithm for which operation and size, as a table says.

A user's table or that of `closeranks tune`, see
`closeranks.collectives.selection.tuning_table`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from closeranks.collectives.selection.call_options import AMONG_DEVICES, AUTO, known_name
from closeranks.errors import UsageError

UNLIMITED: Final = float("inf")
#: More rules for an operation than that are refused.
MOST: Final = 256
Ladder = tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Rules:
    """Algorithms by operation and size.

    Attributes
    ----------
    ladders : mapping of str to tuple of (float, str)
        Operation -> (largest size in bytes, algorithm), ascending.
    """

    ladders: Mapping[str, Ladder] = field(default_factory=dict)

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
        for limit, name in self.ladders.get(operation, ()):
            if nbytes <= limit:
                return None if name == AUTO else name
        return None

    def divides(self, operation: str, size_class: int) -> bool:
        """Tell whether sizes of one class may have different rules.  Local."""
        least, most = 1 << size_class >> 1, (1 << size_class) - 1
        return any(least <= limit < most for limit, _ in self.ladders.get(operation, ()))

    def table(self) -> dict[str, Any]:
        """Write the rules as `read_rules` reads them."""
        return {
            operation: [
                {"algorithm": name} | ({} if limit == UNLIMITED else {"up_to_bytes": limit})
                for limit, name in ladder
            ]
            for operation, ladder in self.ladders.items()
        }


def read_rules(table: Mapping[str, object]) -> Rules:
    """Read a table of rules.

    Local.

    Parameters
    ----------
    table : mapping of str to object
        Operation -> a name, or a list of ``{"up_to_bytes": 65536, "algorithm":
        "native"}`` by ascending size, the last one perhaps without a limit.

    Returns
    -------
    Rules
        The same, checked.

    Raises
    ------
    UsageError
        With what is wrong where.
    """
    return Rules({operation: _ladder(operation, said) for operation, said in table.items()})


def _ladder(operation: str, said: object) -> Ladder:
    if isinstance(said, str):
        return ((UNLIMITED, _name(operation, said)),)
    if not isinstance(said, Sequence):
        raise UsageError("tuning", f"{operation}: {said!r:.40}", "a name, or a list of rules")
    if len(said) > MOST:
        raise UsageError("tuning", f"{operation}: {len(said)} rules", f"give at most {MOST}")
    rules: list[tuple[float, str]] = []
    for rule in said:
        if not isinstance(rule, Mapping) or set(rule) - {"up_to_bytes", "algorithm"}:
            raise UsageError("tuning", f"{operation}: a rule {rule!r:.40}",
                             'write {"up_to_bytes": 65536, "algorithm": "native"}')  # fmt: skip
        limit = rule.get("up_to_bytes", UNLIMITED)
        is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if not is_number or not limit >= 0:
            raise UsageError("tuning", f"{operation}: up_to_bytes {limit!r:.40}", "0 or more")
        if rules and limit <= rules[-1][0]:
            problem = f"{operation}: {limit} after {rules[-1][0]}"
            raise UsageError("tuning", problem, "give ascending limits")
        rules.append((limit, _name(operation, rule.get("algorithm"))))
    return tuple(rules)


def _name(operation: str, name: object) -> str:
    if not isinstance(name, str):
        raise UsageError("tuning", f"{operation}: algorithm {name!r:.40}", "a name")
    if name in AMONG_DEVICES:
        problem = f"{name!r} for {operation}, wherever its arrays lie"
        raise UsageError("tuning", problem, "ask for it in the calls of arrays on devices")
    return name if name == AUTO else known_name(operation, name, "tuning")
