"""Bytes of device arrays, in pieces through pinned memory, on a device that forgives nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some

from closeranks.checkpoint.control.pending import Pending
from closeranks.checkpoint.saving import save as saving
from closeranks.checkpoint.saving.save import Saving
from closeranks.checkpoint.state import device_staging, state_tree
from closeranks.checkpoint.state.device_staging import DeviceBytes, DeviceCopies, Filling
from closeranks.checkpoint.state.shards import PerRank, Shard
from closeranks.comms.gpu.array_interface import _tensor, device_array, install
from closeranks.comms.gpu.device_array import DeviceArray
from closeranks.comms.gpu.pinned_staging import copy_streams
from closeranks.errors import UsageError
from tests.checkpoint.ground import contents, make
from tests.fake_device import STALE, FakeArray, FakeDevice, FakeStream

SMALL = 256


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    runtime = FakeDevice()
    remove = install(runtime)
    yield runtime
    remove()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that nothing fits."""
    monkeypatch.setattr(device_staging, "PIECE", SMALL)


class Half:
    """A tensor of bfloat16 on the device, known by DLPack alone."""

    def __init__(self, fake: FakeDevice, values: Any) -> None:
        self.held = fake.array(np.asarray(values, ml_dtypes.bfloat16).view(np.int16))
        self.shape, self.dtype = self.held.shape, "a tensor's bfloat16"

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        del stream
        capsule = np.empty(self.shape, np.int16).__dlpack__()
        tensor = _tensor(capsule)
        tensor.code, tensor.data = 4, self.held._pointer
        return capsule


class OnHost:
    """A tensor on the host, known by DLPack alone."""

    def __init__(self, values: Any) -> None:
        self.held = np.asarray(values)
        self.shape = self.held.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        assert stream is None
        return self.held.__dlpack__()


def there(array: Any) -> DeviceArray:
    found = device_array(array, "test")
    assert found is not None
    return found


def read(parts: list[DeviceBytes]) -> list[bytes]:
    arrivals = DeviceCopies(parts)
    return [b"".join(piece.tobytes() for piece in arrivals.of(part)) for part in parts]


#: How an array of shape (6, 50, 7) is seen.
FACES = [
    np.s_[:], np.s_[:, 3:40], np.s_[::-1], np.s_[:, :, 2], np.s_[2], np.s_[:, ::3, 1:6],
    np.s_[1:2, 4], np.s_[1, 3:7], np.s_[3, 7, 2:], np.s_[2:3, 3, 4], np.s_[:, :, ::-2],
    np.s_[4:, :0],
]  # fmt: skip


@pytest.mark.usefixtures("small")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@example(face=np.s_[1, 3:7], turned=True, dtype="f8", cuts=[])
@given(
    face=some.sampled_from(FACES),
    turned=some.booleans(),
    dtype=some.sampled_from(["u1", "f2", "f8", "c16", "V3"]),
    cuts=some.lists(some.floats(0, 1), max_size=3),
)
def test_any_part_of_any_array_comes_and_goes(
    fake: FakeDevice, face: Any, turned: bool, dtype: str, cuts: list[float]
) -> None:
    size = np.dtype(dtype).itemsize
    rng = np.random.default_rng(7)
    host = rng.integers(0, 256, 6 * 50 * 7 * size, np.uint8).view(dtype).reshape(6, 50, 7)
    whole = fake.array(host)
    seen, array = host[face], whole[face]
    if turned:
        seen = seen.T
        array = FakeArray(fake, array._pointer, array.shape[::-1], array.strides[::-1],
                          array.dtype, 0, True)  # fmt: skip
    found = device_array(array, "test")
    if found is None:
        assert not seen.size
        return
    ends = sorted({0, seen.nbytes, *(int(seen.nbytes * cut) for cut in cuts)})
    parts = [DeviceBytes(found)[a:b] for a, b in pairwise(ends)]
    plain = np.ascontiguousarray(seen).tobytes()
    assert read(parts) == [plain[a:b] for a, b in pairwise(ends)]
    other = bytes(255 - byte for byte in plain)
    filling = Filling()
    for part in reversed(parts):
        data = np.frombuffer(other, np.uint8)[part.start : part.start + part.size]
        filling.put(part, data)
    filling.end()
    wanted = host.copy()
    target = wanted[face].T if turned else wanted[face]
    target[...] = np.frombuffer(other, dtype).reshape(target.shape)
    assert whole.get().tobytes() == wanted.tobytes()


def test_copies_wait_for_what_was_there_at_save_and_for_no_more(fake: FakeDevice) -> None:
    stream, ran = fake.stream(0), list[str]()
    with fake.using(stream):
        x = fake.array(np.zeros(1000))
        x.set(np.arange(1000.0))  # a producer that has not begun
        _, (leaf,) = state_tree.flatten([x])
        fake.put(lambda: ran.append("later work"))
    fake.put(lambda: ran.append("the default stream"))
    assert (x.peek().view(np.uint8) == STALE).all()
    assert isinstance(leaf.array, DeviceArray)
    assert read([DeviceBytes(leaf.array)]) == [np.arange(1000.0).tobytes()]
    assert not ran


def test_an_array_that_tells_no_stream_is_read_after_the_default_one(fake: FakeDevice) -> None:
    x = fake.array(np.zeros(10), ordered=False)
    x.set(np.arange(10.0))
    _, (leaf,) = state_tree.flatten([x])
    assert isinstance(leaf.array, DeviceArray)
    assert read([DeviceBytes(leaf.array)]) == [np.arange(10.0).tobytes()]
    filling = Filling()
    filling.put(DeviceBytes(leaf.array), np.full(80, 1, np.uint8))
    filling.end()
    assert (x.peek().view(np.uint8) == 1).all()  # the host has waited


def test_the_callers_stream_finds_what_was_put_and_the_host_does_not_wait(
    fake: FakeDevice,
) -> None:
    with fake.using(fake.stream(0)):
        x = fake.array(np.zeros(10))
        x.set(np.ones(10))  # still to come, and to be written over
        filling = Filling()
        filling.put(DeviceBytes(there(x)), np.arange(10.0).view(np.uint8))
        filling.end()
        assert (x.peek().view(np.uint8) == STALE).all()
        assert x.get().tolist() == list(range(10))


@pytest.mark.parametrize("eager", [False, True])
def test_memory_is_bounded_and_used_again(
    fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, eager: bool
) -> None:
    if eager:  # a device that is always ahead of the host
        monkeypatch.setattr(FakeStream, "put", lambda _, work: work())
    held, plain = set[tuple[int, int]](), fake.pinned

    def pinned(nbytes: int) -> Any:
        made = plain(nbytes)
        held.add((made.ctypes.data, nbytes))
        return made

    monkeypatch.setattr(fake, "pinned", pinned)
    monkeypatch.setattr(device_staging, "PIECE", 1 << 16)
    host = np.random.default_rng(1).integers(0, 256, (1 << 20) + 5, np.uint8)
    arrays = [fake.array(host), *(fake.array(host[:n]) for n in (1, 3, 70, 1 << 16))]
    parts = [DeviceBytes(there(array)) for array in arrays]
    for _ in range(3):
        assert read(parts) == [host[: part.size].tobytes() for part in parts]
        filling = Filling()
        for part in parts:
            filling.put(part, host[: part.size])
        filling.end()
        fake.synchronize()
        copy_streams(parts[0].array).release()
    assert {nbytes for _, nbytes in held} == {1 << 16}
    assert len(held) == 2


def test_small_arrays_share_a_buffer(fake: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [fake.array(np.full(3, n)) for n in range(100)]
    moves = next(iter(device_staging._packed(DeviceBytes(there(array)) for array in arrays)))
    assert [span.here for _, span in moves] == [64 * n for n in range(100)]
    monkeypatch.setattr(device_staging, "PIECE", 640)
    loads = list(device_staging._packed(DeviceBytes(there(array)) for array in arrays))
    assert [len(load) for load in loads] == [10] * 10


def test_a_save_of_device_arrays_is_one_of_host_arrays(
    fake: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    sizes = [5 << 20, 3000, 0]
    monkeypatch.setattr(device_staging, "PIECE", 1 << 20)
    hosts, devices = {}, {}
    for rank, size in enumerate(sizes):
        own = rng.integers(0, 256, size, np.uint8)
        table = np.arange(70 * 50, dtype=np.float32).reshape(70, 50) + rank
        hosts[rank] = {
            "own": own, "alike": np.arange(300_000.0), "turned": PerRank(table.T),
            "gaps": table[::2, 3:9], "plain": own[:99].copy(), "part": Shard(table, (300, 50),
            (70 * rank, 0)), "empty": table[:0], "half": np.arange(9, dtype=ml_dtypes.bfloat16),
        }  # fmt: skip
        there = fake.array(table)
        turned = FakeArray(fake, there._pointer, (50, 70), (4, 200), there.dtype, 0, True)
        devices[rank] = {
            "own": fake.array(own), "alike": fake.array(np.arange(300_000.0)),
            "turned": PerRank(turned), "gaps": there[::2, 3:9], "plain": own[:99].copy(),
            "part": Shard(there, (300, 50), (70 * rank, 0)), "empty": there[:0],
            "half": Half(fake, np.arange(9)),
        }  # fmt: skip
    for state, want in ((devices[0], hosts[0]), (devices[2], hosts[2])):
        leaves = [state_tree.flatten(one)[1] for one in (state, want)]
        assert [leaf.described for leaf in leaves[0]] == [leaf.described for leaf in leaves[1]]
        for most in (None, 1000):  # whole, and at a glance
            first, second = (saving._digests(one, most=most) for one in leaves)
            assert (first == second).all()
    made = []
    for name, states in (("host", hosts), ("device", devices)):
        (tmp_path / name).mkdir()
        made.append(make(tmp_path / name, sizes, 1, states=states))
    kept = [{share: contents(path) for share, path in one.paths().items()} for one in made]
    assert kept[0] == kept[1]


def test_shards_are_not_read_to_be_compared(fake: FakeDevice) -> None:
    x = fake.array(np.arange(10.0))
    _, leaves = state_tree.flatten({"part": Shard(x, (20,), (0,)), "own": PerRank(x), "all": x})
    before = fake.copies
    digests = saving._digests(leaves, [not leaf.own for leaf in leaves]).reshape(3, 2)
    assert fake.copies == before + 1
    assert digests.any(axis=1).tolist() == [False, False, True]


def test_an_array_that_changes_before_it_is_copied_is_named(fake: FakeDevice) -> None:
    b = fake.array(np.zeros(100))
    state = {"a": fake.array(np.zeros(100)), "b": PerRank(b)}
    save = Saving(Pending(1), *state_tree.flatten(state), None, checks=True)
    save.check_unchanged()
    b.set(np.ones(100))  # a kernel that has not even begun
    with pytest.raises(UsageError, match="changed while it was copied: b;"):
        save.check_unchanged()


def test_tensors_on_the_host_keep_their_shape() -> None:
    values = np.arange(12.0).reshape(3, 4)
    _, leaves = state_tree.flatten({"a": OnHost(values), "b": OnHost(values[:, ::2].T),
                              "c": Shard(OnHost(values), (6, 4), (0, 0))})  # fmt: skip
    for leaf, want in zip(leaves, (values, values[:, ::2].T, values), strict=True):
        assert isinstance(leaf.array, np.ndarray)
        np.testing.assert_array_equal(leaf.array, want)
        assert leaf.described["shape"] == list(want.shape)
    into = state_tree.array_of(OnHost(values), "test")
    assert into is not None
    device_staging.assign(into, (slice(1, 2),), np.zeros((1, 4)))
    assert not values[1].any()


def test_what_computes_gradients_says_the_way_out() -> None:
    class Leaf(OnHost):
        def __dlpack__(self, *, stream: Any = None) -> Any:
            raise BufferError("requires grad")

    with pytest.raises(UsageError, match=r"requires grad; pass x.detach\(\)"):
        state_tree.flatten({"w": Leaf(np.zeros(2))})
