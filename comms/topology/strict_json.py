"""Read JSON that a stranger may have written: bounded, no surprises."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from closeranks.errors import TopologyError


def load(text: str, operation: str, *, max_bytes: int, max_values: int) -> object:
    """Parse JSON within bounds.

    Parameters
    ----------
    text : str
        The document.
    operation : str
        What is being read, for the error.
    max_bytes : int
        Longest text accepted, in characters.
    max_values : int
        Most values accepted, so that a short text of ``[],[],...`` cannot
        become gigabytes of objects.

    Returns
    -------
    object
        dict, list, str, int, float, bool or None.

    Raises
    ------
    TopologyError
        If it is no JSON, too large, too deep, has a key twice, a number that
        is not finite or one of more than 30 digits.
    """
    if not isinstance(text, str):
        raise TopologyError(operation, f"a {type(text).__name__} is no text", "give a str")
    if len(text) > max_bytes:
        raise TopologyError(operation, f"{len(text)} characters", f"give at most {max_bytes}")
    values = text.count(",") + text.count("[") + text.count("{")
    if values > max_values:
        raise TopologyError(operation, f"{values} values", f"give at most {max_values}")

    def refuse(problem: str) -> NoReturn:
        raise TopologyError(operation, problem, "correct the file or write it anew")

    def number(digits: str) -> int:
        return int(digits) if len(digits) <= 30 else refuse(f"a number of {len(digits)} digits")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            refuse(f"the key {twice[:40]!r} stands twice")
        return made

    try:
        return json.loads(
            text,
            parse_int=number,
            parse_constant=lambda name: refuse(f"{name} is no number"),
            object_pairs_hook=unique,
        )
    except json.JSONDecodeError as error:
        raise TopologyError(operation, f"no JSON ({error})", "write it anew") from None
    except RecursionError:
        raise TopologyError(operation, "nested too deep", "write it anew") from None
