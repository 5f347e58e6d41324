"""The demo's model: exact gradients, sums that do not care who takes which part."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from closeranks.jobs import demo
from closeranks.jobs.demo import fit


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    data, network = demo.load(), demo.Network()
    x, y = data.train_x[:20], data.train_y[:20]
    gradient, _ = network.gradient(x, y)
    for k in (0, 777, 4100, 4500, 4809):
        losses = []
        for step in (1e-6, -1e-6):
            network.parameters[k] += step
            losses.append(network.gradient(x, y)[1])
            network.parameters[k] -= step
        assert gradient[k] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("size", [2, 3, 7, 100])
def test_parts_of_a_batch_sum_to_the_whole(size: int) -> None:
    data, network = demo.load(), demo.Network()
    batch = next(demo.batches(len(data.train_y), 60, epoch=0))
    whole, loss = network.gradient(data.train_x[batch], data.train_y[batch])
    parts = []
    for rank in range(size):
        mine = batch[60 * rank // size : 60 * (rank + 1) // size]
        parts.append(network.gradient(data.train_x[mine], data.train_y[mine]))
    assert np.allclose(sum(part for part, _ in parts), whole, atol=1e-12)
    assert sum(part for _, part in parts) == pytest.approx(loss)


def test_training_learns_real_digits() -> None:
    data, network = demo.load(), demo.Network()
    fit(network, data, epochs=8)
    assert network.accuracy(data.test_x, data.test_y) >= 0.95


def test_batches_cover_an_epoch_in_another_order_each_time() -> None:
    first, second = (np.concatenate(list(demo.batches(100, 30, epoch))) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(100))
    assert first.tolist() != second.tolist()
