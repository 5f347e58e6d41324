"""Files of saves: what is written is read back, and what is not ours is refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from closeranks.checkpoint import Shard
from closeranks.checkpoint.disk import hdf5_writer
from closeranks.checkpoint.disk.hdf5_reader import Archive
from closeranks.checkpoint.disk.hdf5_writer import BLOCK, About, names, parts
from closeranks.checkpoint.erasure.crc32c import crc32c
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.state import state_tree
from closeranks.checkpoint.state.rank_image import Extent, parse
from closeranks.errors import CheckpointError
from tests.checkpoint.filed import about_of, contents_of, extents, put

#: Types that HDF5 has, and such as it has not.
DTYPES = [
    "u1", "<f8", ">f4", ">i2", "<c16", "?", "S5", "U3", "V7", "M8[s]", ">M8[D]", "m8[us]", "f2",
    "g",
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4,
    [("a", "<i4"), ("b", ">f8", (2, 3))], [("t", "M8[s]"), ("n", "u1")],
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
]  # fmt: skip


def filled(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Make an array of any type: of all bits."""
    array = np.zeros(shape, dtype)
    if array.dtype.kind == "b":
        array[...] = np.random.default_rng(seed).integers(0, 2, shape)
    elif array.nbytes and array.dtype.kind != "U":
        raw = np.random.default_rng(seed).integers(0, 256, array.nbytes, np.uint8)
        array = raw.view(array.dtype).reshape(shape)
    return array


def read_all(path: Path, own: dict[int, tuple[Extent, Bytes]]) -> None:
    """Compare a file with what was written, whole and in pieces."""
    with Archive(path) as found:
        for rank, (extent, body) in own.items():
            assert found.text(rank) == extent.text
            target = np.zeros(body.size, np.uint8)
            found.read(rank, 0, target)
            np.testing.assert_array_equal(target, body)
            rng = np.random.default_rng(body.size)
            for _ in range(5):
                start, stop = sorted(rng.integers(0, body.size + 1, 2))
                target = np.zeros(stop - start, np.uint8)
                found.read(rank, int(start), target)
                np.testing.assert_array_equal(target, body[start:stop])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(range(len(DTYPES))),
            hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 4),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Any], ranks: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    states = [
        {("alike" if same else "own") + f"/{at}":
         filled(DTYPES[kind], shape, at + rank * (not same))
         for at, (kind, shape, same) in enumerate(entries)}
        for rank in range(ranks)
    ]  # fmt: skip
    every = dict(enumerate(extents(states, lambda path: path.startswith("alike"))))
    path = put(folder, every, about_of(every, ranks))
    read_all(path, every)


def test_what_is_large_is_read_back(tmp_path: Path) -> None:
    state: dict[str, Any] = {"a": np.arange(1_300_000.0), "b": 1}
    state["alike"] = np.arange(700_001, dtype=np.int32)
    states = [state, {**state, "a": -state["a"]}]
    every = dict(enumerate(extents(states, lambda path: path == "alike")))
    path = put(tmp_path, every, about_of(every, 2))
    read_all(path, every)
    assert path.stat().st_size > 20 * BLOCK


def test_any_tool_reads_it(tmp_path: Path) -> None:
    pair = np.dtype([("x", "<i4"), ("y", ">f8")])
    state = {
        "model": {"w": np.arange(6.0).reshape(2, 3), 7: np.ones(2, "?"), "a/b": np.arange(3)},
        "half": np.arange(3).astype(ml_dtypes.bfloat16),
        "part": Shard(np.full((2, 4), 5, ">i2"), (8, 4), (2, 0)),
        "pairs": np.zeros(3, pair), "z": np.arange(2) * 1j,
        "day": np.array(["1970-01-03"], "M8[D]"),
        "text": "word " * 100, "step": 3, "alike": np.arange(100.0),
    }  # fmt: skip
    every = dict(enumerate(extents([state] * 3, lambda path: path == "alike")))
    own = {1: every[1]}
    path = put(tmp_path, own, about_of(own, 3, files=3, node=1))
    with h5py.File(path) as file:
        of = file["ranks/000001"]
        np.testing.assert_array_equal(of["model/w"], state["model"]["w"])  # type: ignore[index]
        assert of["model/7"].dtype == bool
        np.testing.assert_array_equal(of["model/a%2fb"], np.arange(3))
        assert of["half"].attrs["dtype"] == b"bfloat16"
        np.testing.assert_array_equal(of["half"][:].view(ml_dtypes.bfloat16), state["half"])
        assert (of["part"].dtype, of["part"].shape) == (np.dtype(">i2"), (2, 4))
        assert of["part"].attrs["global_shape"].tolist() == [8, 4]
        assert of["part"].attrs["offset"].tolist() == [2, 0]
        assert of["pairs"].dtype == pair
        assert of["z"][1] == 1j
        assert of["day"][0] == 2
        assert of["text"][:].tobytes() == b"word " * 100
        start = int(of["alike"].attrs["start"])
        np.testing.assert_array_equal(of["alike"], np.arange(100.0)[start:][: len(of["alike"])])
        assert of["alike"].attrs["shape"].tolist() == [100]
        said = dict(file.attrs)
        assert (said["step"], said["world"], said["node"], said["files"]) == (10, 3, 1, 3)
        assert said["closeranks_format"] == hdf5_writer.FORMAT
        shape = parse(file["descriptions/000001"][()], 0).shape
        assert "step" in {name for _, name in names(shape)}
        raw = of["model/w"][:].tobytes()
        sums = file["sums/000001"][:].tolist()
        assert crc32c(raw) in sums


def test_names_are_one_each() -> None:
    state = {"a": {"b": 1}, "a/b": 2, 7: 3, "7": 4, "": 5, ".": 6, "..": 7, "%2f": 8, "\0": 9,
             "\ud800": 10, "a%2fb": 11, "x": [1, {"y": (2,)}]}  # fmt: skip
    shape, leaves = state_tree.flatten(state)
    made = [name for _, name in names(shape)]
    assert len(set(made)) == len(leaves)
    assert all(part for name in made for part in name.split("/"))
    assert made[:5] == ["a/b", "a%2fb", "7%int", "7", "%"]
    assert made[-2:] == ["x/0", "x/1/y/0"]
    "".join(made).encode()
    assert [name for _, name in names(0)] == ["value"]


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, dict[int, tuple[Extent, Bytes]], About]:
    """A small file, which others are made of."""
    state = {"a": np.arange(40.0), "b": {"c": np.arange(5).astype(ml_dtypes.bfloat16)}, "n": 1,
             "s": Shard(np.ones((2, 3)), (4, 3), (2, 0)), "alike": np.arange(9)}  # fmt: skip
    own = dict(enumerate(extents([state, state], lambda path: path == "alike")))
    about = about_of(own, 2)
    return put(tmp_path, own, about), own, about


def attempt(path: Path, own: dict[int, tuple[Extent, Bytes]]) -> str:
    """Read all of a file: gives why that is not possible, or compares it."""
    problem = ""
    try:
        read_all(path, own)
    except CheckpointError as error:
        problem = error.problem
    assert (str(path) in problem) == bool(problem)
    with suppress(CheckpointError), Archive(path) as found:
        assert bool(found.damaged()) == bool(problem)
    return problem


def test_a_byte_that_is_not_what_was_written_is_found(small: Any) -> None:
    path, own, _ = small
    data = path.read_bytes()
    found = []
    for at in range(0, len(data), 23):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        found.append(attempt(path, own))
    assert sum("is damaged" in text for text in found) > 10
    assert sum("HDF5 says" in text for text in found) > 60


def test_a_file_that_ends_too_early_is_refused(small: Any) -> None:
    path, own, _ = small
    data = path.read_bytes()
    for length in [*range(0, len(data), 61), len(data) - 1]:
        path.write_bytes(data[:length])
        assert attempt(path, own)


def test_a_file_that_was_not_finished_is_none(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, own, about = small
    contents = {rank: contents_of(extent.text, body) for rank, (extent, body) in own.items()}
    monkeypatch.setattr(hdf5_writer, "complete", lambda _: np.zeros(16, np.uint8))
    hdf5_writer.write(path, about, contents)
    assert "not complete" in attempt(path, own)


def test_who_gives_up_leaves_nothing(small: Any) -> None:
    path, own, about = small
    before = path.read_bytes()
    contents = {rank: contents_of(extent.text, body) for rank, (extent, body) in own.items()}

    def check() -> None:
        raise CheckpointError("persist", "no time")

    for word in ("check", "approve"):
        with pytest.raises(CheckpointError, match="no time"):
            hdf5_writer.write(path, about, contents, **{word: check})
    assert [other.name for other in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


Forgery = Callable[[h5py.File, Path], None]


def _replaced(file: h5py.File, name: str = "ranks/000000/a") -> np.ndarray[Any, Any]:
    data: np.ndarray[Any, Any] = file[name][:]
    del file[name]
    return data


def _external_link(file: h5py.File, other: Path) -> None:
    _replaced(file)
    file["ranks/000000/a"] = h5py.ExternalLink(str(other), "/ranks/000000/a")


def _external_group(file: h5py.File, other: Path) -> None:
    del file["ranks"]
    file["ranks"] = h5py.ExternalLink(str(other), "/ranks")


def _soft_link(file: h5py.File, other: Path) -> None:
    del other
    _replaced(file)
    file["ranks/000000/a"] = h5py.SoftLink("/ranks/000001/a")


def _virtual(file: h5py.File, other: Path) -> None:
    data = _replaced(file)
    layout = h5py.VirtualLayout(data.shape, data.dtype)
    layout[:] = h5py.VirtualSource(str(other), "ranks/000000/a", data.shape)
    file.create_virtual_dataset("ranks/000000/a", layout)


def _external_storage(file: h5py.File, other: Path) -> None:
    data = _replaced(file)
    file.create_dataset("ranks/000000/a", data.shape, data.dtype,
                        external=[(str(other), 0, data.nbytes)])  # fmt: skip


def _chunked(file: h5py.File, other: Path) -> None:
    del other
    data = _replaced(file)
    file.create_dataset("ranks/000000/a", data=data, chunks=True)


def _filtered(file: h5py.File, other: Path) -> None:
    del other
    data = _replaced(file)
    file.create_dataset("ranks/000000/a", data=data, chunks=True, compression="gzip")


def _plugin(file: h5py.File, other: Path) -> None:
    del other
    data = _replaced(file)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk(data.shape)
    # Of a registered plug-in, optional, so that HDF5 makes the data set without it.
    plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
    space = h5py.h5s.create_simple(data.shape)
    h5py.h5d.create(file["ranks/000000"].id, b"a", h5py.h5t.NATIVE_DOUBLE, space, plist)


def _references(file: h5py.File, other: Path) -> None:
    del other
    data = _replaced(file)
    file.create_dataset("ranks/000000/a", data.shape, h5py.ref_dtype)


def _compound_with_reference(file: h5py.File, other: Path) -> None:
    del other
    data = _replaced(file)
    file.create_dataset("ranks/000000/a", data.shape, np.dtype([("r", h5py.ref_dtype)]))


def _texts_elsewhere(file: h5py.File, other: Path) -> None:
    del other
    data = _replaced(file)
    file.create_dataset("ranks/000000/a", data.shape, h5py.string_dtype())


def _group(file: h5py.File, other: Path) -> None:
    del other
    _replaced(file)
    file.create_group("ranks/000000/a")


def _huge(file: h5py.File, other: Path) -> None:
    del other
    data = _replaced(file)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    space = h5py.h5s.create_simple((1 << 40,))
    h5py.h5d.create(file["ranks/000000"].id, b"a", h5py.h5t.NATIVE_DOUBLE, space, plist)
    del data


def _unwritten(file: h5py.File, other: Path) -> None:
    del other
    data = _replaced(file)
    file.create_dataset("ranks/000000/a", data.shape, data.dtype)


def _newer(file: h5py.File, other: Path) -> None:
    del other
    file.attrs["closeranks_format"] = np.uint64(hdf5_writer.FORMAT + 1)


def _text_format(file: h5py.File, other: Path) -> None:
    del other
    file.attrs["closeranks_format"] = "1"


def _of_others(file: h5py.File, other: Path) -> None:
    del other
    del file.attrs["closeranks_format"]


FORGERIES: dict[Forgery, str] = {
    _external_link: "a is a link", _external_group: "ranks is a link", _soft_link: "a is a link",
    _virtual: "a is virtual", _external_storage: "a is in another file", _chunked: "in chunks",
    _filtered: "filter 1", _plugin: "filter 32015", _references: "references",
    _compound_with_reference: "references", _texts_elsewhere: "references", _group: "no data set",
    _huge: "8796093022208 bytes, not 320", _unwritten: "ends after the file",
    _newer: "newer than", _text_format: "no number", _of_others: "no file of closeranks",
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__.strip("_"))
def test_what_leads_elsewhere_is_refused(small: Any, tmp_path: Path, forgery: Forgery) -> None:
    path, own, _ = small
    other = tmp_path / "other.h5"
    other.write_bytes(path.read_bytes())
    with h5py.File(path, "r+") as file:
        forgery(file, other)
    assert FORGERIES[forgery] in attempt(path, own)


@pytest.mark.parametrize("words", [
    {"ranks": ((0, 10, 1 << 60),)}, {"ranks": ((0, 1 << 62, 64),)}, {"members": (0,)},
    {"members": (0, 5)}, {"node": 9}, {"ranks": ()}, {"world": -1}, {"step": 1 << 70},
])  # fmt: skip
def test_sizes_that_no_file_has_are_refused(small: Any, words: dict[str, Any]) -> None:
    path, own, about = small
    wrong = replace(about, **words)
    text = wrong.encode()
    with h5py.File(path, "r+") as file:
        del file["about"]
        file.create_dataset("about", data=np.frombuffer(text, np.uint8))
        total = crc32c(text)
        for rank, _, _ in wrong.ranks:
            total = crc32c(file[f"sums/{rank:06d}"][:].view(np.uint8), total)
        file["complete"][:] = hdf5_writer.complete(total).view("<u8")
    assert attempt(path, own)


def _said(extent: Extent, **words: Any) -> Any:
    """Give a description that says something else."""
    description = parse(extent.text, extent.body)
    return replace(description, **words)


def test_descriptions_that_contradict_themselves_are_refused(small: Any) -> None:
    _, own, _ = small
    extent = own[0][0]
    leaves = parse(extent.text, extent.body).leaves
    for words in (
        {"alike": 1 << 40}, {"alike": -64}, {"own": 1 << 40}, {"own": -64}, {"body": 8},
        {"leaves": leaves[1:]}, {"leaves": [*leaves, leaves[0]]}, {"shape": {"dict": 3}},
        {"shape": 7}, {"shape": {"list": [0, 0, 1, 2, 3]}}, {"leaves": [None] * len(leaves)},
        {"leaves": [{**leaf, "shape": [1 << 50]} for leaf in leaves]},
        {"leaves": [{**leaf, "shape": [-1, -8]} for leaf in leaves]},
        {"leaves": [{**leaf, "at": 1 << 50} for leaf in leaves]},
        {"leaves": [{**leaf, "at": -64} for leaf in leaves]},
        {"leaves": [{**leaf, "at": 0.5} for leaf in leaves]},
        {"leaves": [{**leaf, "dtype": "O"} for leaf in leaves]},
    ):  # fmt: skip
        with pytest.raises(CheckpointError):
            parts(_said(extent, **words), 2, 0)


def test_links_and_files_of_others_are_not_opened(small: Any, tmp_path: Path) -> None:
    path, own, _ = small
    moved = tmp_path / "moved.h5"
    path.rename(moved)
    path.symlink_to(moved)
    assert attempt(path, own)
    path.unlink()
    os.mkfifo(path)
    assert "not a file of this user" in attempt(path, own)
    path.unlink()
    assert "No such file" in attempt(path, own)
    if os.geteuid() == 0:
        path.write_bytes(moved.read_bytes())
        os.chown(path, 65534, 65534)
        assert "not a file of this user" in attempt(path, own)
