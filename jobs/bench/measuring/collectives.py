"""The collectives the suite knows, one entry each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from closeranks.jobs.bench.measuring.collective_facts import (
    Collective,
    Problem,
    equal,
    uneven,
    whole,
)

Array = npt.NDArray[Any]


def _one(ranks: int) -> float:
    """Bus factor of operations with one busy link."""
    del ranks
    return 1.0


def _others(ranks: int) -> float:
    """Bus factor of operations that leave a rank's own share where it is."""
    return (ranks - 1) / ranks


def _twice(ranks: int) -> float:
    """Bus factor of an all-reduce: a reduce-scatter and an all-gather."""
    return 2 * (ranks - 1) / ranks


def _plain(p: Problem, send: Array | None, receive: Array | None) -> tuple[Any, ...]:
    del p
    return send, receive


def _own_block(p: Problem) -> Array:
    return p.given(p.rank, p.starts[p.rank], p.mine)


def _all_blocks(p: Problem) -> Array:
    """Concatenate every rank's own block, as a gather does."""
    blocks = zip(range(p.ranks), p.starts, p.counts, strict=True)
    return np.concatenate([p.given(rank, at, count) for rank, at, count in blocks])


def _root_block(p: Problem) -> Array:
    return p.given(0, p.starts[p.rank], p.mine)


def _my_share(p: Problem) -> Array:
    return p.reduced(p.starts[p.rank], p.mine)


def _exchange(p: Problem, send: Array | None, receive: Array | None) -> tuple[Any, ...]:
    return [send, p.outgoing()], [receive, p.incoming()]


def _input(p: Problem) -> Array:
    return p.given(p.rank, 0, p.total)


def _total(p: Problem) -> int:
    return p.total


def _mine(p: Problem) -> int:
    return p.mine


def _none(p: Problem) -> None:
    del p


_BARRIER = Collective("barrier", "Barrier", whole, _one, _none, _none, _none, lambda *_: ())


def _only_receive(p: Problem, send: Array | None, receive: Array | None) -> tuple[Any, ...]:
    del p, send
    return (receive,)


_BROADCAST = Collective(
    name="bcast",
    method="Bcast",
    split=whole,
    factor=_one,
    send=_none,
    length=_total,
    expected=lambda p: p.given(0, 0, p.total),
    arguments=_only_receive,
    in_place=True,
)


def _reduction(name: str, **fields: Any) -> Collective:
    """Describe an operation that sends ``total`` elements and reduces them."""
    known: dict[str, Any] = {
        "method": name.capitalize(),
        "split": whole,
        "factor": _one,
        "send": _input,
        "length": _total,
        "arguments": _plain,
        "reduces": True,
    }
    return Collective(name=name, **{**known, **fields})


def _movement(name: str, **fields: Any) -> Collective:
    """Describe an operation that only moves blocks."""
    known: dict[str, Any] = {
        "method": name.capitalize(),
        "split": uneven if name.endswith("v") else equal,
        "factor": _others,
        "arguments": _plain,
    }
    return Collective(name=name, **{**known, **fields})


def _to_root(name: str, arguments: Any = _plain) -> Collective:
    """Describe a gather."""
    return _movement(
        name,
        send=_own_block,
        length=lambda p: p.total if p.at_root else None,
        expected=lambda p: _all_blocks(p) if p.at_root else None,
        arguments=arguments,
    )


def _from_root(name: str, arguments: Any = _plain) -> Collective:
    """Describe a scatter."""
    return _movement(
        name,
        send=lambda p: _input(p) if p.at_root else None,
        length=_mine,
        expected=_root_block,
        arguments=arguments,
    )


def _with_counts(p: Problem, array: Array | None) -> Any:
    """Add the counts to a buffer that holds every rank's block."""
    return None if array is None else [array, list(p.counts)]


COLLECTIVES: dict[str, Collective] = {
    one.name: one
    for one in (
        _BARRIER,
        _BROADCAST,
        _reduction(
            "reduce",
            length=lambda p: p.total if p.at_root else None,
            expected=lambda p: p.reduced(0, p.total) if p.at_root else None,
        ),
        _reduction("allreduce", factor=_twice, expected=lambda p: p.reduced(0, p.total)),
        _reduction(
            "reduce_scatter_block",
            split=equal,
            factor=_others,
            length=_mine,
            expected=_my_share,
        ),
        _reduction(
            "reduce_scatter",
            split=uneven,
            factor=_others,
            length=_mine,
            expected=_my_share,
            arguments=lambda p, send, receive: (send, receive, list(p.counts)),
        ),
        _movement("allgather", send=_own_block, length=_total, expected=_all_blocks),
        _movement(
            "allgatherv",
            send=_own_block,
            length=_total,
            expected=_all_blocks,
            arguments=lambda p, send, receive: (send, _with_counts(p, receive)),
        ),
        _to_root("gather"),
        _to_root("gatherv", lambda p, send, receive: (send, _with_counts(p, receive))),
        _from_root("scatter"),
        _from_root("scatterv", lambda p, send, receive: (_with_counts(p, send), receive)),
        _movement("alltoall", send=_input, length=_total, expected=Problem.exchanged),
        _movement(
            "alltoallv", send=_input, length=_total, expected=Problem.exchanged, arguments=_exchange
        ),
        _reduction("scan", expected=lambda p: p.reduced(0, p.total, p.rank + 1)),
        _reduction(
            "exscan",
            expected=lambda p: p.reduced(0, p.total, p.rank) if p.rank else None,
        ),
    )
}
