"""The shape holds: registers, messages of unknown size, early stop, simulated.

The same plans run on real ranks in tests/mpi/test_shape.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.collectives.analysis.simulation import simulate
from tests.collectives.shape import counts_exchange, first_of

SIZES = [1, 2, 3, 5, 8]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_alltoallv_through_a_counts_exchange(size: int, seed: int) -> None:
    plan, inputs, outputs = counts_exchange.example(size)
    found = simulate(plan, inputs, seed=seed)
    for rank in range(size):
        np.testing.assert_array_equal(found[rank], outputs[rank])


@pytest.mark.parametrize("size", SIZES)
def test_sum_of_the_first_all_but_one(size: int) -> None:
    seen = set()
    for seed in range(20):
        plan, inputs = first_of.example(size)
        total = simulate(plan, inputs, seed=seed)[0]
        seen.add(first_of.missing(total, size))
    assert seen <= {0, 1}
    assert size == 1 or 1 in seen, "no order dropped a vector: this test proves nothing"
