"""Train an embedding whose gradient is a few rows: only these rows are sent.

    closeranks run -n 4 -- examples/embedding_rows.py

Each rank sees some words of a vocabulary of 50 000 in a step.  The gradient has
a row for each of them, and the sum a row for each word that any rank has seen.
Both ways give the same embedding; the sparse one sends a part of the bytes.
"""

from __future__ import annotations

import numpy as np

import closeranks as cr
from closeranks.collectives.sparse import SparseVector

WORDS, WIDTH, BATCH, STEPS, RATE = 50_000, 32, 256, 20, 0.5


def main() -> None:
    """Train twice, and compare."""
    target = np.random.default_rng(1).standard_normal((WORDS, WIDTH)).astype(np.float32)
    with cr.init() as comm:
        tables, sent = [], []
        for is_sparse in (True, False):
            draw = np.random.default_rng(comm.rank)
            table = np.zeros((WORDS, WIDTH), np.float32)
            before = sum(comm.statistics().bytes_per_level.values())
            for _ in range(STEPS):
                words = draw.integers(0, WORDS, BATCH)
                rows = table[words] - target[words]
                if is_sparse:
                    total = comm.Allreduce_sparse(SparseVector(words, rows, WORDS))
                    table[total.indices] -= RATE * total.values / comm.size
                else:
                    gradient = np.zeros_like(table)
                    np.add.at(gradient, words, rows)
                    comm.Allreduce(gradient.copy(), gradient, algorithm="ring")
                    table -= RATE * gradient / comm.size
            tables.append(table)
            sent.append(sum(comm.statistics().bytes_per_level.values()) - before)
        assert np.allclose(*tables, atol=1e-5)
        if comm.rank == 0:
            print(f"rank 0 has sent {sent[0]:,} bytes by rows, {sent[1]:,} by whole gradients")


if __name__ == "__main__":
    main()
