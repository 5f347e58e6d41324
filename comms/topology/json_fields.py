"""Take a JSON object apart that a stranger may have written."""

from __future__ import annotations

from typing import Any, TypeVar

from closeranks.errors import TopologyError

T = TypeVar("T")


class Members:
    """A JSON object whose members are taken out with their types checked.

    Parameters
    ----------
    item : object
        What should be a JSON object.
    what : str
        What it is, for the text of an error.
    file : str
        What kind of file it stands in, for the text of an error.

    Raises
    ------
    TopologyError
        If it is none; the methods raise it for members that are missing, of a
        wrong type or out of bounds.
    """

    def __init__(self, item: object, what: str, file: str) -> None:
        if not isinstance(item, dict):
            raise TopologyError(file, f"{what} is {str(item)[:40]!r}", "give a JSON object")
        self._members: dict[str, Any] = item
        self._what, self._file = what, file

    def keys(self, *known: str) -> None:
        """Refuse members nobody reads."""
        for key in self._members:
            if key not in known:
                problem = f"{self._what} has the unknown key {key[:40]!r}"
                raise TopologyError(self._file, problem, f"known are {', '.join(known)}")

    def has(self, key: str) -> bool:
        """Say whether a member is there and not null."""
        return self._members.get(key) is not None

    def absent(self, key: str, default: T) -> T | None:
        """Return the default for a missing member, None for a null."""
        return None if key in self._members else default

    def get(self, key: str, kind: type[T]) -> T:
        """Return a member of exactly this type."""
        value = self._members.get(key)
        if type(value) is not kind:
            problem = f"{key} of {self._what} is {str(value)[:40]!r}"
            raise TopologyError(self._file, problem, f"give a JSON {kind.__name__}")
        return value

    def text(self, key: str, longest: int) -> str:
        """Return a bounded string."""
        value = self.get(key, str)
        if len(value) > longest:
            problem = f"{key} of {self._what} has {len(value)} characters"
            raise TopologyError(self._file, problem, f"give at most {longest}")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        """Return a bounded int."""
        value = self.get(key, int)
        if not low <= value <= high:
            problem = f"{key} of {self._what} is {value}"
            raise TopologyError(self._file, problem, f"stay in {low}..{high}")
        return value

    def number(self, key: str) -> float | None:
        """Return a number or None; its range is checked by its reader."""
        value = self._members.get(key)
        if value is not None and type(value) not in (int, float):
            problem = f"{key} of {self._what} is {str(value)[:40]!r}"
            raise TopologyError(self._file, problem, "give a number or null")
        return value

    def items(self, key: str, most: int) -> list[Any]:
        """Return a bounded list; a missing one is empty."""
        value = self.get(key, list) if self.has(key) else []
        if len(value) > most:
            problem = f"{key} of {self._what} has {len(value)} entries"
            raise TopologyError(self._file, problem, f"give at most {most}")
        return value
