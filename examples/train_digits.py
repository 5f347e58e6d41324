"""Data-parallel training in one page: handwritten digits on any number of ranks.

closeranks run -n 4 -- examples/train_digits.py
"""

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import closeranks

EPOCHS, BATCH, RATE = 12, 60, 0.5


def gradients(weights, x, y):
    """Sum the gradients of a two-layer network over some samples."""
    w1, b1, w2, b2 = weights
    hidden = np.maximum(x @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    odds = np.exp(scores - scores.max(axis=1, keepdims=True, initial=0))
    odds /= odds.sum(axis=1, keepdims=True)
    odds[np.arange(len(y)), y] -= 1
    back = (odds @ w2.T) * (hidden > 0)
    return [x.T @ back, back.sum(axis=0), hidden.T @ odds, odds.sum(axis=0)]


def main():
    """Train, and print the accuracy on digits never seen."""
    x, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(x / 16, y, random_state=0, stratify=y)
    random = np.random.default_rng(0)
    weights = [random.normal(0, 0.18, (64, 64)), np.zeros(64)]
    weights += [random.normal(0, 0.18, (64, 10)), np.zeros(10)]

    with closeranks.init() as comm:
        if comm.rank == 0:
            print(comm.hierarchy)
        for epoch in range(EPOCHS):
            # Every rank draws the same global batches and takes its part of each.
            order = np.random.default_rng(epoch).permutation(len(train_y))
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                mine = batch[comm.rank :: comm.size]
                for i, gradient in enumerate(gradients(weights, train_x[mine], train_y[mine])):
                    comm.Allreduce(MPI.IN_PLACE, gradient)
                    weights[i] -= RATE * gradient / len(batch)
        w1, b1, w2, b2 = weights
        found = (np.maximum(test_x @ w1 + b1, 0) @ w2 + b2).argmax(axis=1)
        if comm.rank == 0:
            print(comm.explain("allreduce", weights[0].nbytes, "float64"))
            print(f"test accuracy {(found == test_y).mean():.3f}")


if __name__ == "__main__":
    main()
