"""Checksums, alone and while bytes are copied."""

from __future__ import annotations

from collections.abc import Iterator

import llvmlite.binding as llvm
import numpy as np
import pytest

from closeranks.checkpoint.erasure import crc32c as checksum
from closeranks.checkpoint.erasure.crc32c import crc32c, table
from closeranks.checkpoint.erasure.crc32c_llvm import ALL, LINE, NAME, Way, ways, write
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.errors import UsageError


def by_table(data: Bytes, seed: int) -> int:
    """Sum up byte by byte."""
    value, sums = seed, table().tolist()
    for byte in data.tolist():
        value = sums[(value ^ byte) & 255] ^ value >> 8
    return value


def lines(nbytes: int) -> Bytes:
    """Give memory that starts at a line."""
    memory = np.zeros(nbytes + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + nbytes]


@pytest.fixture(params=ways(), ids=lambda way: way.name)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Every way of this processor, forced."""
    monkeypatch.setattr(checksum, "ways", lambda: (request.param,))
    checksum._function.cache_clear()
    yield request.param
    checksum._function.cache_clear()


def test_the_known_sum(way: Way) -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(b"\0" * 32) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


@pytest.mark.parametrize("nbytes", [1, 7, 63, 191, 192, 255, 256, 257, 400, 1000, 4096])
def test_every_length_is_copied_and_summed(way: Way, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    target = np.zeros(nbytes, np.uint8)
    expected = by_table(data, 12345)
    assert checksum.copy(target, data, nbytes, [12345]).tolist() == [expected]
    assert np.array_equal(target, data)
    assert checksum.sums(data, nbytes, [12345]).tolist() == [expected]


@pytest.mark.parametrize("past", [False, True])
def test_each_chunk_has_its_seed_and_the_last_may_be_shorter(way: Way, past: bool) -> None:
    data = np.random.default_rng(4).integers(0, 256, 5 * 1024 + 100, dtype=np.uint8)
    seeds, target = np.arange(6, dtype=np.uint32) * 99, lines(data.size)
    found = checksum.copy(target, data, 1024, seeds, past=past)
    parts = [data[at : at + 1024] for at in range(0, data.size, 1024)]
    expected = [by_table(part, seed) for part, seed in zip(parts, seeds.tolist(), strict=True)]
    assert found.tolist() == expected
    assert np.array_equal(target, data)
    assert np.array_equal(seeds, np.arange(6) * 99)


def test_lines_anywhere_are_copied_too(way: Way) -> None:
    data, target = np.arange(3000, dtype=np.uint16).view(np.uint8)[1:5000], lines(5003)[3:5002]
    checksum.copy(target, data, 1024, np.zeros(5), past=True)
    assert np.array_equal(target, data)


def test_every_flipped_bit_is_found(way: Way) -> None:
    data = np.random.default_rng(5).integers(0, 256, 300, dtype=np.uint8)
    right = checksum.sums(data, 300, [1])
    for bit in range(0, 2400, 7):
        data[bit // 8] ^= 1 << bit % 8
        assert checksum.sums(data, 300, [1]) != right
        data[bit // 8] ^= 1 << bit % 8


def test_the_chunk_of_another_place_does_not_fit() -> None:
    data = np.zeros(2048, np.uint8)
    one, other = checksum.sums(data, 1024, [1, 2]).tolist()
    assert one != other


def test_no_bytes_are_one_empty_chunk() -> None:
    nothing = np.zeros(0, np.uint8)
    assert checksum.sums(nothing, 1024, [7]).tolist() == [7]


@pytest.mark.parametrize("way", ALL, ids=lambda way: way.name)
def test_code_for_any_processor_compiles(way: Way) -> None:
    """Also for those that are not here."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = "aarch64-unknown-linux-gnu" if way.name == "arm" else "x86_64-unknown-linux-gnu"
    features = ",".join(f"+{name}" for name in way.needs)
    machine = llvm.Target.from_triple(triple).create_target_machine("generic", features, 3)
    code = machine.emit_assembly(llvm.parse_assembly(write(way, copies=True, past=True)))
    word = "vpclmul" if way.folds else {"sse4.2": "crc32q", "arm": "crc32cx"}.get(way.name, NAME)
    assert word in code


@pytest.mark.parametrize(
    ("target", "data", "chunk_bytes", "seeds", "words"),
    [
        (np.zeros(8, np.uint8), np.zeros(9, np.uint8), 9, [0], "9 bytes to a place of 8"),
        (np.zeros(9, np.uint8), np.zeros(9, np.uint8), 4, [0], "for 3 chunks of 4 bytes"),
        (np.zeros(9, np.uint8), np.zeros(9, np.uint8), 0, [0], "for 0 chunks of 0 bytes"),
        (np.zeros(9, np.uint8), np.zeros(9, np.int8), 9, [0], "int8 of shape"),
        (np.zeros(9, np.uint8), np.zeros(18, np.uint8)[::2], 9, [0], r"strides \(2,\)"),
    ],
)
def test_what_does_not_fit_is_refused(
    target: Bytes, data: Bytes, chunk_bytes: int, seeds: list[int], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        checksum.copy(target, data, chunk_bytes, seeds)
