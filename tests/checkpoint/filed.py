"""Files of a save, made in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from closeranks.checkpoint.disk import hdf5_writer, saved_files
from closeranks.checkpoint.disk.hdf5_writer import About, Contents
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.state import state_tree
from closeranks.checkpoint.state.rank_image import Extent, describe

NAME = "filed"
RUN = "0123456789abcdef"


def body_of(extent: Extent) -> Bytes:
    """Give the data of an extent."""
    body = np.zeros(extent.body, np.uint8)
    for at, data in extent.sources:
        assert isinstance(data, np.ndarray)
        body[at : at + data.size] = data
    return body


def contents_of(text: bytes, body: Bytes) -> Contents:
    """Give what a rank has."""
    return Contents(text, lambda start, stop: body[start:stop])


def extents(states: Sequence[Any], alike: Callable[[str], bool]) -> list[tuple[Extent, Bytes]]:
    """Take apart what ranks of one group hold."""
    made = []
    for rank, state in enumerate(states):
        shape, leaves = state_tree.flatten(state)
        same = [alike(leaf.path) and not leaf.own for leaf in leaves]
        extent = describe(shape, leaves, same, len(states), rank)
        made.append((extent, body_of(extent)))
    return made


def about_of(
    own: Mapping[int, tuple[Extent, Bytes]], world: int, *, step: int = 10, generation: int = 1,
    epoch: int = 1 << 32, node: int = 0, files: int = 1, run: str = RUN,
) -> About:  # fmt: skip
    """Give what the file of some ranks says of itself."""
    ranks = tuple((rank, len(extent.text), extent.body) for rank, (extent, _) in own.items())
    members = tuple(range(world))
    return About(NAME, run, epoch, generation, step, world, node, files, members, ranks)


def put(folder: Path, own: Mapping[int, tuple[Extent, Bytes]], about: About) -> Path:
    """Write the file of some ranks."""
    path = saved_files.make(folder, about)
    contents = {rank: contents_of(extent.text, body) for rank, (extent, body) in own.items()}
    hdf5_writer.write(path, about, contents)
    return path


def save(
    folder: Path, states: Sequence[Any], nodes: Sequence[Sequence[int]], **said: Any
) -> list[Path]:
    """Write the files of all nodes; entries called ``alike...`` are so."""
    every = extents(states, lambda path: path.startswith("alike"))
    paths = []
    for node, ranks in enumerate(nodes):
        own = {rank: every[rank] for rank in ranks}
        about = about_of(own, len(states), node=node, files=len(nodes), **said)
        paths.append(put(folder, own, about))
    return paths
