"""A state as a tree of leaves, and the description that is kept with its bytes.

Dicts, lists and tuples hold arrays, on the host or on a device, numbers,
strings and bytes.  A leaf is described by plain JSON; arrays, and long strings
and bytes, have their data beside it.  Nothing is ever executed: no pickle.

Python's own kinds of dicts, lists and tuples come back as they were, and so do
named tuples.  Other classes are refused, because their attributes would be
lost.  Nothing is imported to make one anew.  Strings and bytes of a derived
class come back as plain ones, a `numpy.memmap` as a plain array.
"""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.state.shards import PerRank, Shard
from closeranks.comms.gpu.array_interface import foreign_array
from closeranks.comms.gpu.device_array import DeviceArray
from closeranks.comms.numeric_argument import shown
from closeranks.errors import CheckpointError, UsageError

#: What a defaultdict may make.
_MADE: Final = {made.__name__: made for made in (bool, bytes, complex, dict, float, int, list, set,
                                                 str, tuple)}  # fmt: skip
_DICTS: Final = {made.__name__: made for made in (dict, OrderedDict, Counter)}
_DEFAULT, _NAMED = "defaultdict", "namedtuple"


def kind_of(part: Any, path: str, operation: str) -> str | None:
    """Give the kind of a part of a tree.

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
        raise CheckpointError("restore", f"a tree of kind {kind!r}", "use a newer closeranks")
    if _named(kind) is None:
        told = rest.split(" ")[0].replace(":", ".")
        raise CheckpointError("restore", f"no named tuple {told} with the fields it had is here",
                              "import its module first, or pass into")  # fmt: skip


def made(kind: str, items: Iterable[Any]) -> Any:
    """Make a part of a tree.

    Local.

    Parameters
    ----------
    kind : str
        As of `kind_of`.
    items : iterable
        The contents: pairs of a key and a value, or values.

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
    """Find the class of a named tuple, among imported modules."""
    _, place, fields = kind.split(" ")
    module, _, path = place.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    fits = isinstance(found, type) and found.__bases__ == (tuple,)
    return found if fits and ",".join(getattr(found, "_fields", ())) == fields else None


State: TypeAlias = Any
Described: TypeAlias = dict[str, Any]
Array: TypeAlias = NDArray[Any] | DeviceArray

_Kind: TypeAlias = tuple[tuple[type, ...], Callable[[Any], Any], Callable[[Any], Any]]

#: Bytes and strings that are longer lie beside the description.
_SHORT: Final = 256
_REMEDY: Final = "dict, list, tuple, array, number, string, bytes, Shard or PerRank"


class StateLeaf(NamedTuple):
    """One entry of a state.

    Attributes
    ----------
    path : str
        Such as ``model/layers/0/weight``.
    described : dict
        The description, as plain JSON.
    array : ndarray, DeviceArray or None
        Its bytes, where they lie beside the description.
    own : bool
        Whether it was passed as this rank's own: a `Shard` or a `PerRank`.
    """

    path: str
    described: Described
    array: Array | None
    own: bool


def flatten(state: State) -> tuple[Any, list[StateLeaf]]:
    """Take a state apart.

    Local; arrays are looked at, not copied.  Arrays on devices have the values
    after the work that their streams have been given until now.

    Parameters
    ----------
    state : dict, list or tuple
        A tree; keys are strings or integers.

    Returns
    -------
    shape : object
        The tree as plain JSON, with numbers for leaves.
    leaves : list of StateLeaf
        In the order of the numbers.

    Raises
    ------
    UsageError
        If something else is in it.
    Unavailable
        If an array lies on a device, and no library to copy from there is
        here.
    """
    leaves: list[StateLeaf] = []
    return _shape(state, "", False, leaves), leaves


def _shape(state: State, path: str, own: bool, leaves: list[StateLeaf]) -> Any:
    """Describe a tree, and collect its leaves."""
    if isinstance(state, PerRank):
        return _shape(state.value, path, True, leaves)
    kind = kind_of(state, path, "save")
    if kind is not None and is_mapping(kind):
        return {kind: [[_key(key, path), _shape(value, _below(path, key), own, leaves)]
                       for key, value in state.items()]}  # fmt: skip
    if kind is not None:
        items = enumerate(state)
        return {kind: [_shape(value, _below(path, at), own, leaves) for at, value in items]}
    leaves.append(_leaf(state, path, own))
    return len(leaves) - 1


def _key(key: Any, path: str) -> str | int:
    """Check a key of a dict."""
    if type(key) not in (str, int):
        problem = f"the key {key!r} of {path or 'the state'} is a {type(key).__name__}"
        raise UsageError("save", problem, "use strings or integers")
    return key  # type: ignore[no-any-return]


def _below(path: str, key: object) -> str:
    """Give the path of an entry of a tree."""
    return f"{path}/{key}" if path else str(key)


def _leaf(value: Any, path: str, own: bool) -> StateLeaf:
    """Describe a leaf."""
    if isinstance(value, Shard):
        leaf = _leaf(value.array, path, True)
        place: Described = {"global_shape": list(value.global_shape), "offset": list(value.offset)}
        place |= {"padded": True} if value.padded else {}
        return leaf._replace(described={**leaf.described, **place, "kind": "shard"})
    if isinstance(value, np.ndarray):
        return StateLeaf(path, _array(value, path), array_of(value, "save"), own)
    if isinstance(value, np.generic):
        array = np.asarray(value)
        return StateLeaf(path, {**_array(array, path), "kind": "scalar"}, array, own)
    value = _plain(value)
    if isinstance(value, str | bytes) and len(value) > _SHORT:
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        described = {"kind": type(value).__name__, "shape": [len(data)]}
        return StateLeaf(path, described, np.frombuffer(data, np.uint8), own)
    for kind, (types, write, _) in _VALUES.items():
        if type(value) in types:
            return StateLeaf(path, {"kind": kind, "value": write(value)}, None, own)
    found = array_of(value, "save")
    if found is not None:
        if isinstance(found, DeviceArray):
            found.mark()
        return StateLeaf(path, _array(found, path), found, own)
    problem = f"{path or 'the state'} is a {type(value).__name__}"
    raise UsageError("save", problem, _REMEDY)


def _plain(value: Any) -> Any:
    """See a text or bytes of a derived class as plain ones: they come back so."""
    if isinstance(value, str):
        return str.__str__(value)
    return bytes(memoryview(value)) if isinstance(value, bytes) else value


def array_of(value: Any, operation: str) -> Array | None:
    """See an entry as an array, of any library.

    Local; nothing is copied.

    Parameters
    ----------
    value : object
        Any.
    operation : str
        Name of the operation, for the message.

    Returns
    -------
    ndarray, DeviceArray or None
        None if it is no array.

    Raises
    ------
    UsageError, Unavailable
        As `closeranks.comms.gpu.array_interface.device_array`.
    """
    if not isinstance(value, np.ndarray):
        return foreign_array(value, operation)
    # A matrix has two axes whatever is done to it.
    return value.view(np.ndarray) if type(value) in _SEEN_PLAIN else value


def _array(array: Array, path: str) -> Described:
    """Describe an array."""
    if array.dtype.hasobject or isinstance(array, np.ma.MaskedArray):
        kind = "objects" if array.dtype.hasobject else "values and masks"
        raise UsageError("save", f"{path or 'the state'} is an array of {kind}", _REMEDY)
    dtype = write_dtype(array.dtype)
    if read_dtype(json.loads(json.dumps(dtype))) != array.dtype:
        problem = f"{path or 'the state'} has elements of type {array.dtype}"
        raise UsageError("save", problem, "which nobody could read back; use plain types")
    dress = {name: True for name, one in _DRESSES.items() if type(array) is one}
    plain = not isinstance(array, np.ndarray) or type(array) in (np.ndarray, np.memmap)
    if not plain and not dress:
        problem = f"{path or 'the state'} is a {type(array).__name__}"
        raise UsageError("save", f"{problem}, which would come back as an ndarray",
                         "pass np.asarray(...), and what else it holds beside it")  # fmt: skip
    dress |= {_RECORD: True} if array.dtype.type is np.record else {}
    return {"kind": "array", "dtype": dtype, "shape": list(array.shape), **dress}


def write_dtype(dtype: np.dtype[Any]) -> Any:
    """Write a type: its name where NumPy's description says too little.

    Local.

    Parameters
    ----------
    dtype : dtype
        Of an array.
    """
    described: Any = np.lib.format.dtype_to_descr(dtype)
    return dtype.name if described == dtype.str and not _says_all(dtype) else described


def _says_all(dtype: np.dtype[Any]) -> bool:
    """Tell whether NumPy makes the same type of its own description."""
    with suppress(TypeError):  # some it does not know itself
        return np.dtype(dtype.str) == dtype
    return False


def read_dtype(described: Any) -> np.dtype[Any]:
    """Read the type of an array's elements.

    Local.

    Parameters
    ----------
    described : object
        As `write_dtype` has written it.

    Returns
    -------
    dtype
        Without objects.

    Raises
    ------
    CheckpointError
        If it is none.
    """
    import ml_dtypes  # noqa: F401 - which makes its names known to NumPy

    try:
        plain = described if isinstance(described, str) else _tuples(described)
        dtype = np.dtype(plain) if isinstance(plain, str) else np.lib.format.descr_to_dtype(plain)
    except (TypeError, ValueError, KeyError, SyntaxError) as error:
        raise CheckpointError("restore", f"no type of elements: {str(described)[:80]}") from error
    if dtype.hasobject:
        raise CheckpointError("restore", "elements that are objects", "they are never read")
    return dtype


def _tuples(described: Any) -> Any:
    """Give fields as NumPy wants them; JSON knows lists alone."""
    if isinstance(described, list):
        return [tuple(_tuples(part) if isinstance(part, list) and part and isinstance(part[0], list)
                      else tuple(part) if isinstance(part, list) else part
                      for part in field) for field in described]  # fmt: skip
    return described


def dressed(described: Described, array: NDArray[Any]) -> NDArray[Any]:
    """Give an array the class that it had when it was saved.

    Local.

    Parameters
    ----------
    described : dict
        Of the leaf.
    array : ndarray
        Its numbers.
    """
    if _RECORD in described:
        array = array.view(np.dtype((np.record, array.dtype)))
    for name, one in _DRESSES.items():
        array = array.view(one) if name in described else array
    return array


#: In a description: what arrays may be beside plain ones, and that their elements are records.
_DRESSES: Final[Mapping[str, Any]] = {"matrix": np.matrix, "recarray": np.recarray}
_RECORD: Final = "record"
#: Classes whose numbers are all that is copied.
_SEEN_PLAIN: Final = (*_DRESSES.values(), np.memmap)


#: Kind -> types, how a value is written as JSON, and how it is read.
_VALUES: Final[Mapping[Any, _Kind]] = {
    "none": ((type(None),), lambda _: None, lambda _: None),
    "bool": ((bool,), bool, bool),
    "int": ((int,), hex, lambda text: int(text, 16)),
    "float": ((float,), float.hex, float.fromhex),
    "complex": (
        (complex,),
        lambda value: [value.real.hex(), value.imag.hex()],
        lambda parts: complex(*map(float.fromhex, parts)),
    ),
    "text": ((str,), lambda text: text.encode("utf-8", "surrogatepass").hex(),
             lambda digits: bytes.fromhex(digits).decode("utf-8", "surrogatepass")),
    "data": ((bytes,), lambda data: base64.b64encode(data).decode(), base64.b64decode),
}  # fmt: skip


def nbytes(described: Described) -> int:
    """Give how many bytes lie beside a description.  Local.

    Parameters
    ----------
    described : dict
        Of a leaf.

    Returns
    -------
    int
        0 where all is in the description.
    """
    if "shape" not in described:
        return 0
    itemsize = read_dtype(described["dtype"]).itemsize if "dtype" in described else 1
    count = 1
    for length in described["shape"]:
        count *= int(length)
    return count * itemsize


def value(described: Described, data: Bytes | None) -> Any:
    """Make a leaf anew.

    Local.

    Parameters
    ----------
    described : dict
        The description.
    data : ndarray of uint8, or None
        Its bytes, if any lie beside the description; an array keeps them.

    Returns
    -------
    object
        An array, a number, a text or bytes; of a shard its array.

    Raises
    ------
    CheckpointError
        If there is no such kind.
    """
    kind = described.get("kind")
    if data is None:
        if kind not in _VALUES:
            raise CheckpointError("restore", f"an entry of kind {kind!r}", "use a newer closeranks")
        return _VALUES[kind][2](described["value"])
    if kind in ("str", "bytes"):
        plain = data.tobytes()
        return plain.decode("utf-8", "surrogatepass") if kind == "str" else plain
    if "dtype" not in described:
        raise CheckpointError("restore", f"an entry of kind {kind!r}", "use a newer closeranks")
    numbers = data.view(read_dtype(described["dtype"])).reshape(described["shape"])
    array = dressed(described, numbers)
    return array[()] if kind == "scalar" else array


def unflatten(shape: Any, leaves: Sequence[Any]) -> State:
    """Put a state together.  Local.

    Parameters
    ----------
    shape : object
        As `flatten` has given it.
    leaves : sequence
        The values, in the order of their numbers.

    Returns
    -------
    dict, list or tuple
        The tree.
    """
    if isinstance(shape, int):
        return leaves[shape]
    ((kind, items),) = shape.items()
    if is_mapping(kind):
        return made(kind, ((key, unflatten(item, leaves)) for key, item in items))
    return made(kind, [unflatten(item, leaves) for item in items])


def check_kinds(shape: Any) -> None:
    """Raise CheckpointError if `unflatten` cannot make a tree here.  Local."""
    if isinstance(shape, int):
        return
    ((kind, items),) = shape.items()
    check(kind)
    for item in items:
        check_kinds(item[1] if is_mapping(kind) else item)


def paths(shape: Any, path: str = "") -> Iterator[str]:
    """Give the paths of the leaves of a tree, in their order.  Local.

    Parameters
    ----------
    shape : object
        As `flatten` has given it.
    path : str
        Of the tree itself.

    Yields
    ------
    str
        Such as ``model/layers/0/weight``.
    """
    if isinstance(shape, int):
        yield path
        return
    ((kind, items),) = shape.items()
    for at, item in enumerate(items):
        key, below = item if is_mapping(kind) else (at, item)
        yield from paths(below, _below(path, key))
