"""What a leaf means: its steps replaced by the moves it stands for.

Simulate and cost look inside a leaf; execute hands it to the MPI library or to
a shared-memory kernel where it can, and writes it out where it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from closeranks.collectives.builders.leaf_expansions import EXPANSIONS
from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.schedule import After, Kind, Leaf, Script, Step


def expand(
    script: Script, steps: Sequence[Step], *, keep: Callable[[Step], bool] = lambda _: False
) -> tuple[Script, list[Step]]:
    """Return script and steps with every NATIVE and SHARED step written out.

    Parameters
    ----------
    script : Script
        The rank's script; not changed.
    steps : sequence of Step
        Its steps.
    keep : callable
        Whether a leaf stays as it is.

    Returns
    -------
    script : Script
        As given where there is no leaf, else one with the leaves' scratch.
    steps : list of Step
        Renumbered; what waited for a leaf waits for its last moves.
    """
    if not any(step.kind in (Kind.NATIVE, Kind.SHARED) for step in steps):
        return script, list(steps)
    out = Script(script.rank, 0, 0)
    out.buffers, out.registers = list(script.buffers), list(script.registers)
    out.constants = dict(script.constants)
    written: list[Step] = []
    now: list[After] = []
    for step in steps:
        after = tuple(new for old in step.after for new in now[old])
        if isinstance(step.action, Leaf) and not keep(step):
            now.append(_write_leaf(out, step, step.action, after))
            written.extend(out.drain())
        else:
            spare = len(step.after) - step.need
            written.append(step._replace(after=after, need=len(after) - spare))
            now.append((out.written,))
            out.written += 1
    return out, written


def _write_leaf(out: Script, step: Step, leaf: Leaf, after: After) -> After:
    assert isinstance(step.source, Block)
    assert step.block is not None
    me = leaf.members.index(out.rank)
    writer = EXPANSIONS[leaf.expansion](
        out, leaf.members, me, leaf.root, step.source, step.block, after, step.slot
    )
    while True:
        try:
            next(writer)
        except StopIteration as end:
            done: After = end.value
            return done
