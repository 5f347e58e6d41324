"""The main job in miniature: handwritten digits and a small network.

Pure: data, model and batches; who sums the gradients is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.errors import Unavailable

Array = NDArray[Any]
#: Widths of the layers: 8 x 8 pixels in, ten digits out.
WIDTHS = (64, 64, 10)


class Digits(NamedTuple):
    """Real handwritten digits, split once.

    Attributes
    ----------
    train_x, test_x : ndarray, shape (n, 64), dtype float64
        Pixels, 0 to 1.
    train_y, test_y : ndarray, shape (n,), dtype int64
        The digits.
    """

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def load(xp: ModuleType = np) -> Digits:
    """Load scikit-learn's digits: a random stratified split with a fixed seed.

    Parameters
    ----------
    xp : module
        NumPy or CuPy: where the arrays live.

    Returns
    -------
    Digits
        Images scaled to 0..1, three quarters for training.

    Raises
    ------
    Unavailable
        If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as cause:
        raise Unavailable("scikit-learn", "pip install 'closeranks[demo]'") from cause
    x, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        x / 16.0, y, test_size=0.25, random_state=0, stratify=y
    )
    return Digits(*(xp.asarray(part) for part in (train_x, train_y, test_x, test_y)))


class Network:
    """Two dense layers with a rectifier between them, softmax at the end.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.

    Attributes
    ----------
    parameters : ndarray, shape (4810,), dtype float64
        All weights and biases in one run, so that one all-reduce moves them.
    """

    def __init__(self, xp: ModuleType = np) -> None:
        self.xp = xp
        first, hidden, last = WIDTHS
        self.shapes = ((first, hidden), (hidden,), (hidden, last), (last,))
        random = np.random.default_rng(0)
        start = [random.normal(0, np.sqrt(2 / shape[0]), shape) for shape in self.shapes]
        start[1][:] = start[3][:] = 0
        self.parameters = xp.asarray(np.concatenate([part.ravel() for part in start]))

    def gradient(self, x: Array, y: Array) -> tuple[Array, float]:
        """Return the summed gradient and the summed loss of some samples.

        Parameters
        ----------
        x : ndarray, shape (n, 64)
            Pixels; n may be 0.
        y : ndarray, shape (n,)
            Digits.

        Returns
        -------
        gradient : ndarray, shape (4810,), dtype float64
            Sum over the samples.
        loss : float
            Sum of cross entropies.
        """
        xp, rows = self.xp, self.xp.arange(len(y))
        w1, b1, w2, b2 = self._parts()
        hidden = xp.maximum(x @ w1 + b1, 0)
        odds = _softmax(xp, hidden @ w2 + b2)
        loss = -xp.log(odds[rows, y]).sum()
        odds[rows, y] -= 1
        back = (odds @ w2.T) * (hidden > 0)
        parts = (x.T @ back, back.sum(axis=0), hidden.T @ odds, odds.sum(axis=0))
        return xp.concatenate([part.ravel() for part in parts]), float(loss)

    def accuracy(self, x: Array, y: Array) -> float:
        """Share of samples whose digit is recognised."""
        w1, b1, w2, b2 = self._parts()
        scores = self.xp.maximum(x @ w1 + b1, 0) @ w2 + b2
        return float((scores.argmax(axis=1) == y).mean())

    def _parts(self) -> list[Array]:
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes)]).tolist()
        return [
            self.parameters[low:high].reshape(shape)
            for low, high, shape in zip(ends[:-1], ends[1:], self.shapes, strict=True)
        ]


def _softmax(xp: ModuleType, scores: Array) -> Array:
    powers = xp.exp(scores - scores.max(axis=1, keepdims=True)) if len(scores) else scores
    odds: Array = powers / powers.sum(axis=1, keepdims=True)
    return odds


def batches(samples: int, size: int, epoch: int) -> Iterator[Array]:
    """Yield the global batches of an epoch: the same on every rank.

    Parameters
    ----------
    samples : int
        Training samples.
    size : int
        Samples of a batch; the last one may be smaller.
    epoch : int
        Seeds the order.

    Yields
    ------
    ndarray, dtype int64
        Sample numbers.
    """
    order = np.random.default_rng(epoch).permutation(samples)
    for low in range(0, samples, size):
        yield order[low : low + size]
