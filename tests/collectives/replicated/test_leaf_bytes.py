"""Bytes of the leaves of a state: equal where leaves are, and taken in place."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from closeranks.collectives.replicated.leaf_bytes import entry_of, from_bytes, to_bytes

ALIGNED = np.dtype([("a", "i1"), ("b", "f8")], align=True)
#: Structures with gaps, some inside of others, and long doubles.
PADDED = {
    "aligned": ALIGNED,
    "nested": np.dtype([("x", ALIGNED, (2, 3)), ("y", "i2")], align=True),
    "beyond": np.dtype({"names": ["a"], "formats": ["u1"], "offsets": [3], "itemsize": 9}),
    "backwards": np.dtype({"names": ["a", "b"], "formats": ["i2", "i4"], "offsets": [5, 0]}),
    "shared": np.dtype({"names": ["a", "b"], "formats": ["f4", "u1"], "offsets": [0, 0],
                        "itemsize": 8}),
    "long": np.dtype(np.longdouble),
    "long complex": np.dtype(np.clongdouble),
    "long swapped": np.dtype(np.longdouble).newbyteorder(),
    "long inside": np.dtype([("a", "u1"), ("b", np.longdouble, (2,))], align=True),
}  # fmt: skip

#: All types of numbers that ml_dtypes has.
SHORT = sorted(name for name, kind in vars(ml_dtypes).items()
               if isinstance(kind, type) and issubclass(kind, np.generic))  # fmt: skip


def fill(part: np.ndarray[Any, Any], first: int) -> int:
    """Count upwards in every number of an array, field by field."""
    if part.dtype.names is None:
        part[...] = np.arange(first, first + part.size).reshape(part.shape)
        return first + part.size
    for name in part.dtype.names:
        first = fill(part[name], first)
    return first


def filled(dtype: np.dtype[Any], dirt: int, first: int = 1) -> np.ndarray[Any, Any]:
    """Make an array with some bytes between its numbers."""
    made = np.frombuffer(bytearray([dirt]) * (12 * dtype.itemsize), dtype).reshape(3, 4)
    fill(made, first)
    return made


@pytest.mark.parametrize("name", PADDED)
def test_what_is_between_numbers_makes_no_difference(name: str) -> None:
    clean, dirty = filled(PADDED[name], 0), filled(PADDED[name], 0xA5)
    assert entry_of(dirty) == entry_of(clean)
    assert entry_of(dirty[:, ::2]) == entry_of(clean[:, ::2])
    assert to_bytes(dirty).tobytes() == to_bytes(clean).tobytes()
    other = filled(PADDED[name], 0, first=2)
    assert entry_of(other).digest != entry_of(clean).digest


@pytest.mark.parametrize("name", PADDED)
def test_who_has_other_dirt_gets_the_numbers(name: str) -> None:
    sent, mine = filled(PADDED[name], 0xA5), filled(PADDED[name], 0x11, first=70)
    entry, data = entry_of(sent), to_bytes(sent).copy()
    for old in (mine, mine[::-1], None, np.zeros(3)):
        new = from_bytes(entry, data, old)
        assert entry_of(new) == entry
        assert (new is old) == (old is mine or (old is not None and old.base is not None))


@pytest.mark.parametrize("name", PADDED)
def test_scalars_have_no_padding_either(name: str) -> None:
    sent, clean = filled(PADDED[name], 0xA5)[1, 1], filled(PADDED[name], 0)[1, 1]
    assert entry_of(sent) == entry_of(clean)
    new = from_bytes(entry_of(sent), to_bytes(sent).copy(), None)
    assert type(new) is type(sent)
    assert new == sent
    assert entry_of(new) == entry_of(sent)


def test_equal_dtypes_are_equal_however_they_were_made() -> None:
    described = np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [0, 8]})
    noted = np.dtype("f8", metadata={"from": "a file"})
    assert entry_of(np.zeros(2, described)) == entry_of(np.zeros(2, ALIGNED))
    assert entry_of(np.zeros(2, noted)) == entry_of(np.zeros(2))
    packed = np.dtype([("a", "i1"), ("b", "f8")])
    assert entry_of(np.zeros(2, packed)).digest != entry_of(np.zeros(2, ALIGNED)).digest


@pytest.mark.parametrize(
    "sent", [1, 1.0, True, None, 1j, "text\ud800", b"ab\0", np.str_("ab\0"), np.bytes_(b"ab\0"),
             np.float32(1), np.datetime64("2020"), np.void(b"ab"), np.bool_(True)], ids=repr
)  # fmt: skip
def test_what_is_no_array_comes_as_what_it_was(sent: object) -> None:
    new = from_bytes(entry_of(sent), to_bytes(sent).copy(), None)
    assert type(new) is type(sent)
    assert new == sent
    assert entry_of(new) == entry_of(sent)
    assert entry_of(np.float64(1)).digest != entry_of(1.0).digest
    assert entry_of(np.array(1.0)).digest != entry_of(np.float64(1)).digest


@pytest.mark.parametrize("name", SHORT)
def test_short_numbers_come_as_what_they_were(name: str) -> None:
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    sent = np.arange(12).astype(np.uint8).repeat(dtype.itemsize).view(dtype).reshape(3, 4)
    for leaf in (sent, sent[:, ::2], sent[1, 1], np.ma.MaskedArray(sent, sent == sent[0, 1])):
        entry, data = pickle.loads(pickle.dumps(entry_of(leaf))), to_bytes(leaf).copy()
        for old in (None, np.zeros_like(leaf)):
            new = from_bytes(entry, data, old)
            assert entry_of(new) == entry_of(leaf)
            assert type(new) is type(leaf)
            assert new.dtype == dtype
    assert entry_of(sent.view(f"V{dtype.itemsize}")).digest != entry_of(sent).digest


@pytest.mark.parametrize("dtype", ["V0", [], [("a", "V0")], [("a", "f8", (0,))]], ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)], ids=str)
def test_elements_without_bytes_are_received(dtype: Any, shape: tuple[int, ...]) -> None:
    sent = np.zeros(shape, dtype)
    for old in (None, np.zeros(shape, dtype), np.zeros(2)):
        new = from_bytes(entry_of(sent), to_bytes(sent).copy(), old)
        assert (new.dtype, new.shape) == (sent.dtype, sent.shape)
        assert entry_of(new) == entry_of(sent)


def test_a_read_only_array_stays_read_only() -> None:
    sent = np.arange(3.0)
    for old in (np.zeros(3), np.zeros(2)):
        for writeable in (True, False):
            old.flags.writeable = writeable
            new = from_bytes(entry_of(sent), to_bytes(sent).copy(), old)
            assert new.tolist() == [0, 1, 2]
            assert new.flags.writeable == writeable
            assert (new is old) == (writeable and old.size == 3)
            old = old.copy()


def masked(dtype: Any, mask: int, first: int = 1) -> np.ma.MaskedArray[Any, Any]:
    """Make an array of which some element is masked."""
    made = np.ma.MaskedArray(filled(np.dtype(dtype), 0xA5, first).reshape(-1))
    made[mask] = np.ma.masked
    return made


@pytest.mark.parametrize("dtype", ["f8", "i2", ALIGNED, PADDED["nested"], "g", []], ids=str)
def test_a_mask_is_part_of_an_array(dtype: Any) -> None:
    if dtype == []:
        sent: Any = np.ma.MaskedArray(np.zeros(12, dtype))
    else:
        sent = masked(dtype, 3)
        for other in (masked(dtype, 4), sent.data, np.ma.MaskedArray(sent.data)):
            assert entry_of(other).digest != entry_of(sent).digest
    entry, data = entry_of(sent), to_bytes(sent).copy()
    hard = np.ma.MaskedArray(np.zeros(12, dtype), mask=True, hard_mask=True)
    bare = np.ma.MaskedArray(np.ones(12, dtype))
    still = np.ma.MaskedArray(np.ones(12, dtype))
    still.flags.writeable = False
    for old in (hard, bare, still, np.zeros(12, dtype), np.ma.masked, None):
        new = from_bytes(entry, data, old)
        assert entry_of(new) == entry
        assert type(new) is np.ma.MaskedArray
        assert (new is old) == (old is hard or old is bare)
        assert new.flags.writeable == (old is not still)
    assert hard.hardmask
    assert not bare.hardmask


def test_masks_of_nothing_are_alike_however_they_are_kept() -> None:
    assert entry_of(np.ma.MaskedArray([1.0, 2.0])) == entry_of(
        np.ma.MaskedArray([1.0, 2.0], [False, False])
    )


def test_what_had_a_mask_loses_it() -> None:
    sent, old = np.arange(3.0), np.ma.MaskedArray(np.zeros(3), mask=[True, False, False])
    new = from_bytes(entry_of(sent), to_bytes(sent).copy(), old)
    assert type(new) is np.ndarray
    assert new.tolist() == [0, 1, 2]


def test_what_is_masked_and_nothing_else_stays_what_it_is() -> None:
    entry, data = entry_of(np.ma.masked), to_bytes(np.ma.masked).copy()
    for old in (np.ma.masked, None, np.ma.MaskedArray(2.0)):
        assert entry_of(from_bytes(entry, data, old)) == entry
    sent = np.ma.MaskedArray(5.0)
    new = from_bytes(entry_of(sent), to_bytes(sent).copy(), np.ma.masked)
    assert new is not np.ma.masked
    assert entry_of(new) == entry_of(sent)
    assert np.ma.masked.data == 0.0


@pytest.mark.parametrize("cls", [np.matrix, np.recarray])
def test_an_array_is_made_anew_as_what_it_was(cls: Any) -> None:
    plain = np.array([[(1, 2.0), (3, 4.0)]], [("x", "i4"), ("y", "f8")])
    sent = (plain["y"] if cls is np.matrix else plain).view(cls)
    assert entry_of(sent).digest != entry_of(np.asarray(sent)).digest
    for old in (None, np.zeros(sent.shape, sent.dtype)):
        new = from_bytes(entry_of(sent), to_bytes(sent).copy(), old)
        assert type(new) is cls
        assert entry_of(new) == entry_of(sent)
    if cls is np.matrix:
        assert new[0].shape == (1, 2)
    else:
        assert new.x.tolist() == [[1, 3]]
    assert from_bytes(entry_of(sent), to_bytes(sent).copy(), new) is new


def test_a_fill_value_is_part_of_an_array() -> None:
    sent = np.ma.MaskedArray([1, 2], [False, True], fill_value=-1, hard_mask=True)
    usual = np.ma.MaskedArray([1, 2], [False, True])
    assert entry_of(usual).digest != entry_of(sent).digest
    assert usual.fill_value == 999999
    assert entry_of(usual).digest == entry_of(usual.copy()).digest, "asking for it sets it"
    entry, data = entry_of(sent), to_bytes(sent).copy()
    for old in (None, usual):
        new = from_bytes(entry, data, old)
        assert new.filled().tolist() == [1, -1]
        assert new.hardmask == (old is None)
    back = from_bytes(entry_of(np.ma.MaskedArray([1, 2])), np.zeros(18, np.uint8), sent)
    assert back is sent
    assert sent.fill_value == 999999


def test_types_for_which_numpy_has_no_fill_value_have_none() -> None:
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    usual = np.ma.MaskedArray([1.0, 2.0], [False, True])
    usual.filled()
    sent = usual.astype(dtype)
    new = from_bytes(entry_of(sent), to_bytes(sent).copy(), None)
    assert entry_of(new) == entry_of(sent)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_axes_lie_in_the_order_in_which_they_lay(axes: tuple[int, ...]) -> None:
    inner = np.empty([(3, 4, 5)[axis] for axis in axes]).transpose(np.argsort(axes))
    for sent in (inner, np.ma.MaskedArray(inner, inner > 0)):
        sent[...] = np.arange(60).reshape(3, 4, 5)
        new = from_bytes(entry_of(sent), to_bytes(sent).copy(), None)
        assert (new == sent).all()
        assert new.strides == sent.strides
        other = np.ascontiguousarray(sent)
        assert entry_of(np.ma.MaskedArray(other) if sent is not inner else other) == entry_of(sent)
