"""Send tokens to experts on other ranks and back: a mixture of experts.

    closeranks run -n 4 -- examples/route_tokens.py

Each rank holds tokens and two experts.  A token goes to the two experts of its
largest scores, once to each rank that has one of them, and comes back as the
sum of what they made of it.  The same by hand needs one row for each choice.
"""

from __future__ import annotations

import numpy as np

import closeranks as cr
from closeranks.collectives.sparse import Route

TOKENS, WIDTH, EXPERTS_A_RANK, CHOICES = 512, 64, 2, 2


def main() -> None:
    """Route tokens through their experts, and compare with experts at home."""
    with cr.init() as comm:
        draw = np.random.default_rng(comm.rank)
        experts = EXPERTS_A_RANK * comm.size
        weights = np.random.default_rng(1).standard_normal((experts, WIDTH)).astype(np.float32)
        tokens = draw.standard_normal((TOKENS - 100 * (comm.rank % 2), WIDTH)).astype(np.float32)
        scores = draw.random((len(tokens), experts))
        chosen = np.argsort(-scores, axis=1)[:, :CHOICES]

        route = Route(comm, chosen // EXPERTS_A_RANK)
        # The numbers of the experts travel as rows do.
        arrived, asked = route.dispatch(tokens), route.dispatch(chosen)
        made = np.zeros_like(arrived)
        for expert in range(EXPERTS_A_RANK * comm.rank, EXPERTS_A_RANK * (comm.rank + 1)):
            mine = (asked == expert).any(axis=1)
            made[mine] += arrived[mine] * weights[expert]
        result = route.combine(made)

        wanted = (tokens[:, None] * weights[chosen]).sum(axis=1)
        assert np.allclose(result, wanted, atol=1e-5)
        rows = comm.allreduce(route.arrived)
        choices = comm.allreduce(len(tokens)) * CHOICES
        if comm.rank == 0:
            print(f"{rows} rows went to experts for {choices} choices")


if __name__ == "__main__":
    main()
