"""Erasure codes: whatever is lost, up to the parity, comes back."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.checkpoint.erasure.code import Code
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.erasure.matrix_product import Product
from closeranks.errors import TooManyErasures, UsageError


def whole(code: Code, nbytes: int, seed: int = 0) -> Bytes:
    """Make data, and their parity."""
    data = np.random.default_rng(seed).integers(0, 256, (code.data, nbytes), dtype=np.uint8)
    return np.concatenate([data, code.encode(data)])


@pytest.mark.parametrize("parity", [1, 2, 3, 4])
@pytest.mark.parametrize("data", range(1, 8))
def test_every_loss_up_to_the_parity_comes_back(data: int, parity: int) -> None:
    code = Code(data, parity)
    blocks = whole(code, 97)
    for count in range(parity + 1):
        for lost in combinations(range(data + parity), count):
            left = blocks.copy()
            left[list(lost)] = 255
            present = [number not in lost for number in range(data + parity)]
            assert np.array_equal(code.reconstruct(left, present), blocks)
            assert (left[list(lost)] == 255).all()  # what was passed stays as it was
            code.reconstruct(left, present, out=left)
            assert np.array_equal(left, blocks)


@given(
    data=st.integers(1, 40),
    parity=st.integers(1, 12),
    matrix=st.sampled_from(["auto", "cauchy"]),
    nbytes=st.integers(0, 300),
    seed=st.integers(0, 1 << 30),
)
def test_any_losses_of_any_code_come_back(
    data: int, parity: int, matrix: str, nbytes: int, seed: int
) -> None:
    code, rng = Code(data, parity, matrix), np.random.default_rng(seed)
    blocks = whole(code, nbytes, seed)
    present = np.ones(data + parity, bool)
    present[rng.choice(data + parity, int(rng.integers(0, parity + 1)), replace=False)] = False
    left = np.where(present[:, None], blocks, rng.integers(0, 256, blocks.shape, dtype=np.uint8))
    assert np.array_equal(code.reconstruct(left, present), blocks)


def test_codes_are_linear() -> None:
    code, rng = Code(5, 3), np.random.default_rng(3)
    one, other = rng.integers(0, 256, (2, 5, 200), dtype=np.uint8)
    assert np.array_equal(code.encode(one ^ other), code.encode(one) ^ code.encode(other))


def test_one_more_loss_is_refused_by_name() -> None:
    code = Code(4, 2)
    blocks = whole(code, 10)
    with pytest.raises(TooManyErasures, match="lost ranks 0, 3, 5, code tolerates 2") as error:
        code.reconstruct(blocks, [False, True, True, False, True, False])
    assert (error.value.lost, error.value.tolerated) == ((0, 3, 5), 2)


def test_the_largest_codes_work() -> None:
    for data, parity in ((252, 3), (155, 100)):
        code = Code(data, parity)
        blocks = whole(code, 64)
        present = np.arange(data + parity) >= parity
        left = np.where(present[:, None], blocks, 0).astype(np.uint8)
        assert np.array_equal(code.reconstruct(left, present), blocks)


def test_the_first_parity_is_the_exclusive_or() -> None:
    for parity in (1, 2, 3, 5):
        blocks = whole(Code(6, parity), 50)
        assert np.array_equal(blocks[6], np.bitwise_xor.reduce(blocks[:6]))


def test_a_recipe_reads_the_data_that_are_left() -> None:
    code = Code(4, 2)
    recipe = code.recipe([True, False, True, True, True, True])
    assert (recipe.lost, recipe.kept, recipe.read) == ((1,), (0, 2, 3, 4, 5), (0, 2, 3, 4))
    assert (recipe.matrix == 1).all()  # one loss is an exclusive or
    assert code.recipe([1, 0, 1, 1, 1, 1]) is recipe


def test_memory_of_ones_own_is_used() -> None:
    code = Code(3, 2)
    blocks = whole(code, 1000)
    out = np.empty((2, 1000), np.uint8)
    assert code.encode(blocks[:3], out) is out
    assert np.array_equal(out, blocks[3:])
    apart = [row.copy() for row in blocks]
    apart[1][:] = 0
    code.reconstruct(apart, [True, False, True, True, True], out=apart)
    assert np.array_equal(apart[1], blocks[1])


def test_nothing_is_written_before_all_fits() -> None:
    code = Code(2, 1)
    out = np.full((3, 8), 9, np.uint8)
    uneven = [np.zeros(8, np.uint8), np.zeros(8, np.uint8), np.zeros(7, np.uint8)]
    with pytest.raises(UsageError, match="number 2 of the blocks has 7 bytes, others 8"):
        code.reconstruct(uneven, [True, True, False], out=out)
    assert (out == 9).all()


@pytest.mark.parametrize(
    ("blocks", "present", "words"),
    [
        (np.zeros((2, 8), np.uint8), [True] * 3, "reconstruct: 2 blocks of 3; pass all"),
        (np.zeros((3, 8), np.uint8), [True] * 2, "present names 2 blocks of 3"),
        (np.zeros((3, 8), np.float32), [True] * 3, "float32"),
    ],
)
def test_what_does_not_fit_is_refused(blocks: Bytes, present: list[bool], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Code(2, 1).reconstruct(blocks, present)


def test_the_compiled_way_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables, rows apart, strides, short ends; in the threads of a pool, too."""
    finished: list[int] = []
    finish = Product.finish

    def noted(*given: Any) -> None:
        finished.append(len(given))
        finish(*given)

    monkeypatch.setattr(Product, "finish", noted)
    rng = np.random.default_rng(3)
    code = Code(5, 3)

    def check(nbytes: int) -> None:
        wide = rng.integers(0, 256, (8, nbytes + 64), dtype=np.uint8)
        for table in (wide[:, :nbytes].copy(), wide[:, :nbytes], wide[::-1, 3 : nbytes + 3]):
            wanted = np.empty((3, nbytes), np.uint8)
            Product(code.matrix)(table[:5], wanted)
            apart = list(table[:5].copy())
            for blocks in (table[:5], apart, tuple(apart)):
                for out in (table[5:], [np.empty(nbytes, np.uint8) for _ in range(3)]):
                    assert code.encode(blocks, out) is out
                    assert all(map(np.array_equal, out, wanted))
                assert np.array_equal(code.encode(blocks), wanted)
            whole_table = table.copy()
            for lost in ((0,), (1, 6), (0, 3, 4), (7,), ()):
                present = np.array([number not in lost for number in range(8)])
                for said in (present, present.tolist()):
                    for left in (whole_table.copy(), list(whole_table.copy())):
                        for number in lost:
                            left[number][:] = 77
                        assert code.reconstruct(left, said, left) is left
                        assert all(map(np.array_equal, left, whole_table))
                        for number in lost:
                            left[number][:] = 78
                        assert np.array_equal(code.reconstruct(left, said), whole_table)

    for nbytes in (0, 1, 31, 64, 1000, 4096, 4097):
        check(nbytes)
    assert finished, "the compiled way has not been gone"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, [4096, 4100] * 8))


def test_what_the_compiled_way_does_not_take_is_refused_as_ever() -> None:
    code, rng = Code(4, 2), np.random.default_rng(1)
    good, out = rng.integers(0, 256, (4, 256), dtype=np.uint8), np.zeros((2, 256), np.uint8)
    for _ in range(4):
        code.encode(good, out)
    wanted = out.copy()
    locked = out.copy()
    locked.flags.writeable = False
    wide = np.zeros((4, 512), np.uint8)
    bad: list[tuple[Any, Any]] = [
        (good.view(np.int8), out), (good.view(bool), out), (good[:, :128], out), (good[:3], out),
        ([*good, good[0]], out[:1]), (good, out[:1]), (wide[:, ::2], out), (good, locked),
        (good[0], out), (5, out), ([1, 2, 3, 4], out), ([*good[:3], None], out), (good[None], out),
        ([*good[:3], good[3, :255]], out), (good, [out[0], out]),
        (good.view(">u2"), out.view(">u2")), ([bytes(256)] * 4, out),
    ]  # fmt: skip
    for blocks, target in bad:
        for call in (code.encode, code.encoder):
            with pytest.raises(UsageError):
                call(blocks, target)
    assert np.array_equal(out, wanted)
    everything = np.concatenate([good, out])
    everything.flags.writeable = False
    for _ in range(4):
        with pytest.raises(UsageError, match="is read-only"):
            code.reconstruct(everything, [False] + [True] * 5, everything)


def test_what_is_bound_reads_what_is_there_then() -> None:
    code = Code(3, 2)
    everything = whole(code, 300)
    out = np.zeros((2, 300), np.uint8)
    encode = code.encoder(everything[:3], out)
    for _ in range(2):
        everything[:3] ^= 5
        encode()
        assert np.array_equal(out, code.encode(everything[:3]))
    everything[3:] = out
    left = everything.copy()
    rebuild = code.rebuilder(left, [False, True, True, False, True])
    for _ in range(2):
        left[0], left[3] = 0, 1
        rebuild()
        assert np.array_equal(left, everything)
    code.rebuilder(left, [True] * 5)()
    with pytest.raises(TooManyErasures):
        code.rebuilder(left, [False] * 5)


def test_a_plain_call_costs_little_more_than_a_bound_one() -> None:
    """Two microseconds on a machine at rest; here no more than a third of what it was."""
    code = Code(8, 3)
    blocks = np.zeros((11, 64), np.uint8)
    apart, present = list(blocks), [False] + [True] * 10
    calls = (
        (code.encoder(blocks[:8], blocks[8:]), lambda: code.encode(apart[:8], apart[8:])),
        (code.rebuilder(blocks, present), lambda: code.reconstruct(apart, present, apart)),
    )
    for bound, plain in calls:
        assert min(best_us(plain) - best_us(bound) for _ in range(5)) < 15


def best_us(call: Callable[[], object]) -> float:
    """Give what a call takes if nothing disturbs it."""
    call()
    return min(timeit.repeat(call, number=200, repeat=15)) / 200 * 1e6


@pytest.mark.parametrize("value", ["4", 1.5, True, None, [4], float("nan"), -1, 0, 1 << 70])
def test_codes_of_no_numbers_are_refused(value: Any) -> None:
    for pair in ((value, 2), (2, value)):
        with pytest.raises(UsageError) as met:
            Code(*pair)
        assert met.value.remedy
    with pytest.raises(UsageError, match="unknown matrix"):
        Code(4, 2, value)
