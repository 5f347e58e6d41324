"""Blocks times a matrix: every way that this processor knows, and code for the others."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from closeranks.checkpoint.erasure import matrix_product
from closeranks.checkpoint.erasure.generator_matrix import PRODUCTS, Bytes
from closeranks.checkpoint.erasure.matrix_product import Product, aligned_rows
from closeranks.checkpoint.erasure.product_llvm import (
    ALL,
    Affine,
    Bits,
    Instructions,
    ProductShape,
    Shuffle,
    here,
    write,
)
from closeranks.errors import UsageError

#: Where code for other processors is compiled for: (triple, processor).
TARGETS = {
    "x86": ("x86_64-unknown-linux-gnu", "sapphirerapids"),
    "arm": ("aarch64-unknown-linux-gnu", "neoverse-n1"),
    "power": ("powerpc64le-unknown-linux-gnu", "pwr9"),
}


def by_table(matrix: Bytes, blocks: Bytes) -> Bytes:
    """Multiply by looking every byte up."""
    rows = [np.bitwise_xor.reduce(PRODUCTS[row[:, None], blocks], axis=0) for row in matrix]
    return np.array(rows, np.uint8)


@pytest.fixture(params=here(), ids=lambda way: way.name)
def way(request: pytest.FixtureRequest) -> Instructions:
    """Every way of this processor."""
    found: Instructions = request.param
    return found


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 13])
@pytest.mark.parametrize("ones", [False, True])
def test_every_way_gives_what_the_table_gives(way: Instructions, rows: int, ones: bool) -> None:
    rng = np.random.default_rng(rows)
    matrix = rng.integers(0, 256, (rows, 5), dtype=np.uint8)
    if ones:
        matrix[0] = 1
    multiply = Product(matrix, way)
    for nbytes in (0, 1, 15, 16, 63, 64, 65, 257, 1024, 5000):
        blocks = rng.integers(0, 256, (5, nbytes), dtype=np.uint8)
        results = rng.integers(0, 256, (rows, nbytes), dtype=np.uint8)
        before = results.copy()
        multiply(blocks, results)
        assert np.array_equal(results, by_table(matrix, blocks))
        results[:] = before
        multiply(blocks, results, adds=True)
        assert np.array_equal(results, by_table(matrix, blocks) ^ before)


def test_every_product_of_two_bytes_is_right(way: Instructions) -> None:
    everything = np.arange(256, dtype=np.uint8)[None, :]
    for factor in range(256):
        result = np.empty((1, 256), np.uint8)
        Product(np.array([[factor]], np.uint8), way)(everything, result)
        assert np.array_equal(result[0], PRODUCTS[factor])


def test_large_blocks_go_past_the_caches_and_are_the_same(
    way: Instructions, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (3, 70_001), dtype=np.uint8)
    matrix = rng.integers(0, 256, (2, 3), dtype=np.uint8)
    seen: list[bool] = []
    compiled = matrix_product._function

    def noted(way: Instructions, shape: ProductShape) -> Any:
        seen.append(shape.past)
        return compiled(way, shape)

    monkeypatch.setattr(matrix_product, "cache_bytes", lambda: 1 << 16)
    monkeypatch.setattr(matrix_product, "_function", noted)
    results = aligned_rows(2, 70_001)
    Product(matrix, way)(blocks, results)
    assert np.array_equal(results, by_table(matrix, blocks))
    crooked = np.empty((2, 70_001), np.uint8)  # rows lie anyhow: not past the caches
    Product(matrix, way)(blocks, crooked)
    assert np.array_equal(results, crooked)
    assert seen == [True, False, False, False]  # each time the end of the rows, too


def test_a_result_may_be_a_block(way: Instructions) -> None:
    rng = np.random.default_rng(2)
    blocks = rng.integers(0, 256, (3, 1000), dtype=np.uint8)
    matrix = rng.integers(0, 256, (2, 3), dtype=np.uint8)
    expected = by_table(matrix, blocks)
    Product(matrix, way)(blocks, blocks[1:])
    assert np.array_equal(blocks[1:], expected)


def test_blocks_may_lie_apart(way: Instructions) -> None:
    blocks = [np.full(100, value, np.uint8) for value in (1, 2, 4)]
    (result,) = results = [np.empty(100, np.uint8)]
    Product(np.ones((1, 3), np.uint8), way)(blocks, results)
    assert (result == 7).all()


@pytest.mark.parametrize("way", ALL, ids=lambda way: way.name)
def test_code_for_any_processor_compiles(way: Instructions) -> None:
    """Also for those that are not here."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    features = ",".join(f"+{name}" for name in way.needs)
    kinds = ["arm"] if way.name == "neon" else ["x86"] if way.machines else list(TARGETS)
    mnemonics = {Affine: "vgf2p8affineqb", Shuffle: "tbl" if way.name == "neon" else "pshufb"}
    for kind in kinds:
        triple, processor = TARGETS[kind]
        machine = llvm.Target.from_triple(triple).create_target_machine(processor, features, 3)
        for shape in (ProductShape(2, True, False, True), ProductShape(3, False, True, False)):
            code = machine.emit_assembly(llvm.parse_assembly(write(way, shape)))
            assert mnemonics.get(type(way), "product") in code


def test_operands_mean_what_the_instructions_make_of_them() -> None:
    """The same algorithms in tables, for processors that lack them."""
    factors, numbers = np.arange(256, dtype=np.uint8), np.arange(256)
    shuffle = Shuffle("", 16, 1).operands(factors)
    low, high = shuffle[:, :16], shuffle[:, 16:]
    assert np.array_equal(low[:, numbers & 15] ^ high[:, numbers >> 4], PRODUCTS)
    bits = Bits("", 16, 1).operands(factors)
    chosen = np.where(numbers[None, :, None] >> np.arange(8) & 1, bits[:, None, :], 0)
    assert np.array_equal(np.bitwise_xor.reduce(chosen, axis=2), PRODUCTS)
    affine = Affine("", 16, 1).operands(factors)  # bit i is the parity of byte 7 - i and x
    parities = np.bitwise_count(affine[:, None, ::-1] & numbers[None, :, None].astype(np.uint8)) & 1
    assert np.array_equal(np.packbits(parities, axis=2, bitorder="little")[..., 0], PRODUCTS)


def test_the_portable_way_is_everywhere() -> None:
    assert here()[-1].name == "portable"


@pytest.mark.parametrize(
    ("blocks", "results", "words"),
    [
        (np.zeros((3, 8), np.uint8), np.zeros((1, 8), np.uint8), "3 blocks of 2"),
        (np.zeros((2, 8), np.uint8), np.zeros((2, 8), np.uint8), "2 results of 1"),
        (np.zeros((2, 8), np.int8), np.zeros((1, 8), np.uint8), "number 0 of the blocks is int8"),
        (np.zeros((2, 8), np.uint8)[:, ::2], np.zeros((1, 4), np.uint8), "in one piece"),
        (np.zeros((2, 8), np.uint8), np.zeros((1, 9), np.uint8), "has 9 bytes, others 8"),
    ],
)
def test_what_does_not_fit_is_refused(blocks: Bytes, results: Bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Product(np.ones((1, 2), np.uint8))(blocks, results)
