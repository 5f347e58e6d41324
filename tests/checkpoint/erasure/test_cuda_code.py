"""Erasure codes on a device: its kernel's arithmetic on the host, its order on fake streams."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from closeranks.checkpoint.erasure import cuda_code
from closeranks.checkpoint.erasure.code import Code
from closeranks.checkpoint.erasure.generator_matrix import PRODUCTS
from closeranks.comms.gpu.array_interface import install
from closeranks.errors import TooManyErasures, UsageError
from tests.fake_device import STALE, FakeArray, FakeDevice

#: What a compiler for the host lacks of CUDA C.
PRELUDE = """
#define __global__ static
typedef struct { unsigned x, y, z, w; } uint4;
static struct { unsigned x; } blockIdx, blockDim, threadIdx;
"""
LOOP = """
void run(long long groups, long long threads, const unsigned long long *table,
         long long count, long long nbytes, long long aligned)
{
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < groups; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x)
            multiply(table, count, nbytes, aligned);
}
"""


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    """A device whose kernels are the same arithmetic by NumPy, from the same table."""
    runtime = FakeDevice()
    runtime.kernel = interpreter(runtime)
    remove = install(runtime)
    yield runtime
    remove()


def interpreter(fake: FakeDevice) -> Callable[..., None]:
    """Do what the kernel does, word by word: masks of bits, and what they let through."""

    def run(source: str, name: str, groups: int, threads: int, arguments: tuple[int, ...]) -> None:
        place, count, nbytes, aligned = arguments
        defined = re.search(r"#define ROWS (\d+)", source)
        assert defined is not None
        rows = int(defined[1])
        assert name in source
        assert (groups - 1) * threads * 16 < nbytes <= groups * threads * 16
        found = fake._find(place)
        assert found is not None
        table = found[1][place - found[0] :].view(np.uint64)
        addresses = [int(address) for address in table[: count + rows]]
        assert aligned == all(address % 16 == 0 for address in addresses)
        factors = table[count + rows :].view(np.uint32).reshape(rows, count, 8)
        sums = np.zeros((rows, -(-nbytes // 4)), np.uint32)
        for number in range(count):
            words = np.zeros(4 * sums.shape[1], np.uint8)
            words[:nbytes] = fake._see(addresses[number], (nbytes,), None, np.uint8)
            for bit in range(8):
                masks = (words.view(np.uint32) >> bit & 0x01010101) * np.uint32(255)
                sums ^= masks & factors[:, number, bit, None]
        for address, row in zip(addresses[count:], sums, strict=True):
            fake._see(address, (nbytes,), None, np.uint8)[:] = row.view(np.uint8)[:nbytes]

    return run


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """What runs the very source of the kernel, compiled for the host."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder, libraries = tmp_path_factory.mktemp("kernel"), dict[str, Any]()

    def run(source: str, name: str, groups: int, threads: int, arguments: tuple[int, ...]) -> None:
        if source not in libraries:
            built = folder / f"{len(libraries)}.so"
            flags = ["-x", "c", "-O1", "-w", "-fno-strict-aliasing", "-shared", "-fPIC", "-o"]
            text = PRELUDE + source + LOOP
            subprocess.run([compiler, *flags, str(built), "-"], input=text, text=True, check=True)
            libraries[source] = ctypes.CDLL(str(built)).run
        libraries[source](*map(ctypes.c_longlong, (groups, threads, *arguments)))

    return run


@pytest.fixture
def real(compiled: Callable[..., None]) -> Iterator[FakeDevice]:
    """A device that runs the kernel's source; its addresses are the host's."""
    runtime = FakeDevice(visible=True)
    runtime.kernel = compiled
    remove = install(runtime)
    yield runtime
    remove()


@pytest.mark.parametrize("device", ["fake", "real"])
@pytest.mark.parametrize("nbytes", [256, 333])
def test_every_product_of_two_bytes(
    request: pytest.FixtureRequest, device: str, nbytes: int
) -> None:
    fake: FakeDevice = request.getfixturevalue(device)
    block = np.arange(nbytes, dtype=np.uint8)
    out = fake.full((256, nbytes), 77, np.uint8)
    matrix = np.arange(256, dtype=np.uint8)[:, None]
    cuda_code.encode(matrix, fake.array(block[None]), out)
    np.testing.assert_array_equal(out.get(), PRODUCTS[:, block])
    assert fake.launched == 32


@pytest.mark.parametrize("device", ["fake", "real"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    data=some.integers(1, 12), parity=some.integers(1, 11), nbytes=some.integers(1, 9000),
    seed=some.integers(0, 1 << 30), apart=some.booleans(), given_out=some.booleans(),
)  # fmt: skip
def test_codes_are_those_of_the_host(
    request: pytest.FixtureRequest, device: str, data: int, parity: int, nbytes: int, seed: int,
    apart: bool, given_out: bool,
) -> None:  # fmt: skip
    fake: FakeDevice = request.getfixturevalue(device)
    code, rng = Code(data, parity), np.random.default_rng(seed)
    host = rng.integers(0, 256, (data, nbytes), np.uint8)
    wanted = np.concatenate([host, code.encode(host)])
    blocks: Any = [fake.array(row) for row in host] if apart else fake.array(host)
    out: Any = fake.full((parity, nbytes), 1, np.uint8) if given_out else None
    made: Any = code.encode(blocks, out)
    assert made is out or not given_out
    np.testing.assert_array_equal(made.get(), wanted[data:])
    present = np.ones(data + parity, bool)
    present[rng.choice(data + parity, int(rng.integers(0, parity + 1)), replace=False)] = False
    left: Any = fake.array(np.where(present[:, None], wanted, 0).astype(np.uint8))
    if apart:
        left = [left[number] for number in range(data + parity)]
    found: Any = code.reconstruct(left, present, left if given_out else None)
    rows = [found[number].get() for number in range(data + parity)]
    np.testing.assert_array_equal(rows, wanted)


def test_it_comes_after_what_makes_the_blocks_and_nobody_waits(fake: FakeDevice) -> None:
    host = np.random.default_rng(2).integers(0, 256, (3, 500), np.uint8)
    with fake.using(fake.stream(0)):
        blocks = fake.full((3, 500), 0, np.uint8)
        blocks.set(host)  # has not begun when the parities are asked for
        parity: Any = Code(3, 2).encode(blocks)  # type: ignore[call-overload]
        assert (parity.peek() == STALE).all()
        np.testing.assert_array_equal(parity.get(), Code(3, 2).encode(host))


def test_where_no_stream_is_told_the_host_waits(fake: FakeDevice) -> None:
    host = np.random.default_rng(2).integers(0, 256, (3, 500), np.uint8)
    out = fake.array(np.zeros((2, 500), np.uint8), ordered=False)
    Code(3, 2).encode(fake.array(host, ordered=False), out)  # type: ignore[call-overload]
    np.testing.assert_array_equal(out.peek(), Code(3, 2).encode(host))


def test_streams_of_blocks_are_waited_for_and_wait(fake: FakeDevice) -> None:
    host = np.random.default_rng(3).integers(0, 256, (2, 100), np.uint8)
    stream = fake.stream(0)

    class Bound(FakeArray):
        """An array that belongs to a stream of its own, whoever asks."""

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return super().__cuda_array_interface__ | {"stream": stream}

    with fake.using(stream):
        first = fake.array(host[0])
    first.__class__ = Bound
    blocks, wanted = [first, fake.array(host[1])], Code(2, 1).encode(host)
    parity: Any = Code(2, 1).encode(blocks)  # type: ignore[arg-type]
    np.testing.assert_array_equal(parity.get(), wanted)
    parity = Code(2, 1).encode(blocks)  # type: ignore[arg-type]
    with fake.using(stream):
        first.set(np.zeros(100))
        fake.synchronize()  # which must let the product come first
    np.testing.assert_array_equal(parity.get(), wanted)


@pytest.mark.parametrize(("blocks", "words"), [
    (lambda fake, host: fake.array(host[:1]), "1 data blocks of 2"),
    (lambda fake, host: [fake.array(host[0]), host[1]], "number 1 .* has no bytes on a device"),
    (lambda fake, host: [fake.array(host[0]), fake.array(host[1][:9])], "has 9 bytes"),
    (lambda fake, host: fake.array(host.astype("f4")), "float32 of shape"),
    (lambda fake, host: fake.array(np.repeat(host, 2, 1))[:, ::2], "strides"),
    (lambda fake, host: fake.array(host[:, :0]), "has no bytes on a device"),
])  # fmt: skip
def test_blocks_that_do_not_fit_are_named(fake: FakeDevice, blocks: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Code(2, 1).encode(blocks(fake, np.ones((2, 10), np.uint8)))
    assert not fake.launched


def test_too_many_losses_write_nothing(fake: FakeDevice) -> None:
    left: Any = fake.full((4, 10), 5, np.uint8)
    with pytest.raises(TooManyErasures):
        Code(3, 1).reconstruct(left, [True, False, False, True], left)
    assert (left.get() == 5).all()


def test_sources_differ_by_their_rows_alone() -> None:
    texts = {cuda_code.source(rows) for rows in range(1, cuda_code.ROWS + 1)}
    assert len(texts) == cuda_code.ROWS
    assert all(cuda_code.NAME in text for text in texts)
