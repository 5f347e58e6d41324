"""Erasure codes: whatever is lost, up to the parity, comes back."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.checkpoint.erasure import Code
from closeranks.checkpoint.gf256 import Bytes
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
