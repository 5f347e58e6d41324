"""What the dicts, lists and tuples of a state are, to come back as the same.

Python's own kinds are kept, and named tuples; others are refused, for what
else they hold nobody knows.  Nothing is imported to make one anew.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any, Final

from closeranks.comms.numeric_argument import shown
from closeranks.errors import CheckpointError, UsageError

#: What a defaultdict may make.
_MADE: Final = {made.__name__: made for made in (bool, bytes, complex, dict, float, int, list, set,
                                                 str, tuple)}  # fmt: skip
_DICTS: Final = {made.__name__: made for made in (dict, OrderedDict, Counter)}
_DEFAULT, _NAMED = "defaultdict", "namedtuple"


def kind_of(part: Any, path: str, operation: str) -> str | None:
    """Say what a part of a nest is.

    Local.

    Parameters
    ----------
    part : object
        Of a state.
    path, operation : str
        For the message.

    Returns
    -------
    str or None
        For `made`; None if it is no dict, list or tuple.

    Raises
    ------
    UsageError
        If it is one of a class that would not come back.
    """
    own = type(part)
    if own in (list, tuple) or own in _DICTS.values():
        return str(own.__name__)
    if not isinstance(part, dict | list | tuple):
        return None
    if isinstance(part, defaultdict) and own is defaultdict:
        factory = part.default_factory
        if factory is None or _MADE.get(getattr(factory, "__name__", "")) is factory:
            return f"{_DEFAULT} {factory.__name__ if factory else ''}"
        problem = f"{path or 'the state'} is a defaultdict of {shown(factory)}"
        raise UsageError(operation, problem, f"pass dict(...), or one of {', '.join(_MADE)}")
    if own.__bases__ == (tuple,) and hasattr(own, "_fields"):
        kind = f"{_NAMED} {own.__module__}:{own.__qualname__} {','.join(own._fields)}"
        if _named(kind) is own:
            return kind
    plain = next(base for base in (dict, list, tuple) if isinstance(part, base)).__name__
    problem = f"{path or 'the state'} is a {own.__name__}, which would come back as a {plain}"
    raise UsageError(operation, problem, f"pass {plain}(...), and make it again afterwards")


def is_mapping(kind: str) -> bool:
    """Tell whether a kind has keys.  Local."""
    return kind in _DICTS or kind.startswith(_DEFAULT)


def check(kind: str) -> None:
    """Raise CheckpointError if there is no such kind here.  Local."""
    name, _, rest = kind.partition(" ")
    if kind in ("list", "tuple") or kind in _DICTS or (name == _DEFAULT and rest in ("", *_MADE)):
        return
    if name != _NAMED:
        raise CheckpointError("restore", f"a nest of kind {kind!r}", "use a newer closeranks")
    if _named(kind) is None:
        told = rest.split(" ")[0].replace(":", ".")
        raise CheckpointError("restore", f"no named tuple {told} with the fields it had is here",
                              "import its module first, or pass into")  # fmt: skip


def made(kind: str, items: Iterable[Any]) -> Any:
    """Make a part of a nest.

    Local.

    Parameters
    ----------
    kind : str
        As of `kind_of`.
    items : iterable
        What is in it: pairs of a key and a value, or values.

    Raises
    ------
    CheckpointError
        As of `check`.
    """
    check(kind)
    name, _, rest = kind.partition(" ")
    if name == _DEFAULT:
        return defaultdict(_MADE.get(rest), items)
    if kind in _DICTS:
        return _DICTS[kind](dict(items))
    if name == _NAMED:
        return tuple.__new__(_named(kind) or tuple, items)
    return list(items) if kind == "list" else tuple(items)


def _named(kind: str) -> type[tuple[Any, ...]] | None:
    """Find the class of a named tuple, among what has been imported."""
    _, place, fields = kind.split(" ")
    module, _, path = place.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    fits = isinstance(found, type) and found.__bases__ == (tuple,)
    return found if fits and ",".join(getattr(found, "_fields", ())) == fields else None
