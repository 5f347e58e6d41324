"""Train on handwritten digits while ranks are slow now and then.

Run with ``closeranks run -n 4 -- examples/train_coded.py``.

An ordinary loop waits in every step for the slowest rank.  The coded one helps
it, and comes to the same weights.
"""

import time
from functools import partial

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits

import closeranks as cr
from closeranks.collectives.coded import CodedAllreduce, GilbertElliott, PartialRepetition

STEPS, MICRO, RATE = 30, 8, 2.0
images, digits = load_digits(return_X_y=True)
x, wanted = np.c_[images / 16, np.ones(len(images))], np.eye(10)[digits]


def gradient(rows: np.ndarray, *, weights: np.ndarray, pause_s: float) -> np.ndarray:
    """Differentiate the cross entropy of some images, on a slow machine."""
    time.sleep(pause_s)
    scores = np.exp(x[rows] @ weights)
    return x[rows].T @ (scores / scores.sum(1, keepdims=True) - wanted[rows]) / len(x)


def accuracy(weights: np.ndarray) -> float:
    """Give the share of images that are told right."""
    return float(np.mean((x @ weights).argmax(1) == digits))


with cr.init() as comm:
    batches = np.array_split(np.arange(len(x)), MICRO * comm.size)
    pauses = 0.002 * GilbertElliott(0.1, 0.3, 8, seed=2).factors(STEPS, comm.size)[:, comm.rank]
    plain, coded_weights, seconds = np.zeros((65, 10)), np.zeros((65, 10)), []

    began = time.perf_counter()
    for pause_s in pauses:
        total = np.zeros_like(plain)
        for rows in batches[comm.rank * MICRO : (comm.rank + 1) * MICRO]:
            total += gradient(rows, weights=plain, pause_s=pause_s)
        comm.Allreduce(MPI.IN_PLACE, total)
        plain -= RATE * total
    seconds.append(time.perf_counter() - began)

    with CodedAllreduce(comm, PartialRepetition(comm.size, comm.size - 1, MICRO)) as coded:
        began = time.perf_counter()
        for pause_s in pauses:
            part = partial(gradient, weights=coded_weights, pause_s=pause_s)
            coded_weights -= RATE * coded.step(part, batches)
        seconds.append(time.perf_counter() - began)

    if comm.rank == 0:
        print(f"an ordinary loop {seconds[0]:.2f} s, a coded one {seconds[1]:.2f} s")
        print(f"right: {accuracy(plain):.1%} and {accuracy(coded_weights):.1%}")
    assert np.allclose(plain, coded_weights)
