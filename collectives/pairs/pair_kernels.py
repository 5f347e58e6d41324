"""Kernels of the plans of sparse collectives, over messages of pairs.

A plan cuts a message at given indices, sends the parts, combines what
arrives, and joins the results.  Memory for a kernel's result is sized by the
kernel before it: `pair_layout` for `pair_split`, `pair_room` for `pair_merge`,
`pair_total` for `pair_join`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.pairs.pair_message import (
    HEADER_BYTES,
    Bytes,
    IndexForm,
    PairHeader,
    Values,
    aligned,
    combine_into,
    form_of,
    header_of,
    indices_of,
    values_of,
    write_header,
    write_indices,
    write_message,
)
from closeranks.collectives.plans.apply_kernels import kernel

Ints = NDArray[np.int64]

#: Numbers that `pair_layout` notes of each part: first pair, pairs, form, index bytes, start.
LAYOUT = 5


@kernel("pair_layout")
def pair_layout(cuts: Bytes, message: Bytes, whole: Ints, layout: Ints) -> tuple[int, ...]:
    """Plan how a message is cut into parts.

    Parameters
    ----------
    cuts : ndarray of uint8
        ``parts + 1`` int64 numbers, ascending: part ``i`` has the indices from
        number ``i`` to below the next one.
    message : ndarray of uint8
        The pairs.
    whole : ndarray of int64, shape (1,)
        Part whose indices stay whole, because it is not sent; -1 for none.
    layout : ndarray of int64, shape (parts * LAYOUT,)
        Filled, for `pair_split`.

    Returns
    -------
    tuple of int
        Bytes of all parts, then where each starts, then the bytes of each.
    """
    edges = cuts.view(np.int64)
    header = header_of(message)
    indices = indices_of(message, header)
    firsts = np.searchsorted(indices, edges).tolist()
    row = header.width * header.dtype.itemsize
    rows, starts, sizes, start = layout.reshape(-1, LAYOUT), [], [], 0
    for part, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        first, last = firsts[part], firsts[part + 1]
        if part == whole[0]:
            form, coded = IndexForm.WHOLE, 8 * (last - first)
        else:
            form, coded = form_of(indices[first:last], low, high)
        rows[part] = first, last - first, form, coded, start
        size = aligned(HEADER_BYTES + aligned(coded) + (last - first) * row)
        starts.append(start)
        sizes.append(size)
        start += size
    return start, *starts, *sizes


@kernel("pair_split")
def pair_split(cuts: Bytes, message: Bytes, layout: Ints, parts: Bytes) -> None:
    """Cut a message as `pair_layout` has planned; the parts lie one after the other."""
    edges = cuts.view(np.int64).tolist()
    header = header_of(message)
    indices, values, width = indices_of(message, header), values_of(message, header), header.width
    for part, row in enumerate(layout.reshape(-1, LAYOUT).tolist()):
        first, pairs, form, coded, start = row
        low, high = edges[part], edges[part + 1]
        new = PairHeader(form, pairs, low, high, header.kind, width, HEADER_BYTES, coded)
        last = first + pairs
        write_message(parts[start:], new, indices[first:last], values[first * width : last * width])


@kernel("pair_room")
def pair_room(*messages: Bytes) -> int:
    """Return the most bytes that messages can take once they are combined."""
    return _whole_bytes([header_of(message) for message in messages])


@kernel("pair_total")
def pair_total(*blobs: Bytes) -> int:
    """Return the bytes that messages take once they are joined."""
    return _whole_bytes([header for blob in blobs for header, _ in _messages_in(blob)])


def _whole_bytes(headers: list[PairHeader]) -> int:
    row = headers[0].width * headers[0].dtype.itemsize
    return aligned(HEADER_BYTES + sum(header.pairs for header in headers) * (8 + row))


@kernel("pair_merge")
def pair_merge(*arrays: Bytes) -> None:
    """Combine messages of equal bounds, in their order, into the last array.

    Parameters
    ----------
    *arrays : ndarray of uint8
        The messages, then the array whose front takes the result.
    """
    *messages, out = arrays
    headers = [header_of(message) for message in messages]
    head = headers[0]
    parts = [
        (indices_of(message, header), values_of(message, header))
        for message, header in zip(messages, headers, strict=True)
    ]

    def places(pairs: int) -> tuple[Ints, Values]:
        new = head._replace(
            form=IndexForm.WHOLE, pairs=pairs, start=HEADER_BYTES, index_bytes=8 * pairs
        )
        write_header(out, new)
        return indices_of(out, new), values_of(out, new)

    combine_into(parts, head.low, head.high, head.op, head.width, places)


@kernel("pair_join")
def pair_join(*arrays: Bytes) -> None:
    """Join messages of neighbouring bounds into the last array, by their indices.

    Parameters
    ----------
    *arrays : ndarray of uint8
        One or several messages each, in any order; then the array that takes
        the result, with whole indices.
    """
    *blobs, out = arrays
    found = [one for blob in blobs for one in _messages_in(blob)]
    found.sort(key=lambda one: (one[0].low, one[0].high))
    head = found[0][0]
    pairs = sum(header.pairs for header, _ in found)
    high = max(header.high for header, _ in found)
    whole = PairHeader(
        IndexForm.WHOLE, pairs, head.low, high, head.kind, head.width, HEADER_BYTES, 8 * pairs
    )
    write_header(out, whole)
    indices, values = indices_of(out, whole), values_of(out, whole)
    first, width = 0, head.width
    for header, message in found:
        last = first + header.pairs
        coded = message[header.start : header.start + header.index_bytes]
        write_indices(coded, header, indices[first:last])
        values[first * width : last * width] = values_of(message, header)
        first = last


@kernel("pair_pack")
def pair_pack(*arrays: Bytes) -> None:
    """Write messages one after the other into the last array."""
    *messages, out = arrays
    np.concatenate(messages, out=out)


@kernel("pair_bytes")
def pair_bytes(*messages: Bytes) -> int:
    """Return the bytes of all messages, for `pair_pack`."""
    return sum(len(message) for message in messages)


def _messages_in(blob: Bytes) -> list[tuple[PairHeader, Bytes]]:
    """List the messages that lie one after the other."""
    found, at = [], 0
    while at < len(blob):
        message = blob[at:]
        header = header_of(message)
        size = header.nbytes
        found.append((header, message[:size]))
        at += size
    return found
