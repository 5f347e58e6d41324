"""Coded sums over several emulated nodes: right, told of errors, few bytes on the wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.child import closeranks, said

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

PROGRAM = """\
import faulthandler, sys, time
import numpy as np
import closeranks as cr
from closeranks.collectives.coded import CodedAllreduce, CyclicRepetition
from closeranks.collectives.coded import MSGC, PartialRepetition, Repetition
from closeranks.jobs.bench.measuring.network import node_sent_bytes

faulthandler.dump_traceback_later(60, exit=True)


def sums(coded, late_of, rounds=8):
    count, found = 2 * coded.scheme.parts, []
    for turn in range(rounds):
        pause_s = 0.005 if comm.rank in late_of(turn) else 0.0002

        def part(number, turn=turn, pause_s=pause_s):
            time.sleep(pause_s)
            return np.full(3000, 1000.0 * turn + number)

        found.append(coded.step(part, count))
    found = [one for one in found + coded.flush() if one is not None]
    assert len(found) == rounds
    for turn, one in enumerate(found):
        assert (one == 1000.0 * turn * count + count * (count - 1) // 2).all(), (turn, one[0])


def raises_before_the_first_round():
    try:
        with CodedAllreduce(comm, Repetition(comm.size, 1)) as coded:
            if comm.rank == 1:
                raise ValueError("mine")
            coded.step(lambda number: np.ones(3), coded.scheme.parts)
        return "nothing"
    except (ValueError, cr.PeerLost) as error:
        return f"{type(error).__name__}:{'mine' in str(error)}"


def sent(call):
    call()  # connections and choices are made
    comm.Barrier()
    before = sum(node_sent_bytes().values())
    comm.Barrier()
    for _ in range(4):
        call()
    comm.Barrier()
    found = (sum(node_sent_bytes().values()) - before) / 4
    comm.Barrier()
    return found


with cr.init() as comm:
    n, node = comm.size, sorted(comm.membership.world.node_ranks)
    whole = comm.allgather(node)[n - 1]  # all ranks of one node
    for scheme in (Repetition(n, 1), PartialRepetition(n, 1, 4), MSGC(n, 1, 2, 2)):
        with CodedAllreduce(comm, scheme) as coded:
            sums(coded, lambda turn: {turn % n})
            sums(coded, lambda turn: set(whole) if turn == 2 else set())
    told = raises_before_the_first_round()
    assert comm.allreduce(1) == n
    gradient, total = np.ones(1 << 18), np.empty(1 << 18)
    with CodedAllreduce(comm, CyclicRepetition(n, 1)) as coded:  # takes all but one

        def part(number):
            time.sleep(0.01 if comm.rank == n - 1 else 0.0)
            return gradient

        bytes_coded = sent(lambda: coded.step(part, coded.scheme.parts))
    bytes_plain = sent(lambda: comm.Allreduce(gradient, total))
    sys.stdout.write(f"{comm.rank} {told} {bytes_coded:.0f} {bytes_plain:.0f}\\n")
    sys.stdout.flush()
"""


@pytest.mark.share(2)
@pytest.mark.parametrize("order", ["block", "round-robin"])
def test_sums_errors_and_bytes_of_several_nodes(tmp_path: Path, order: str) -> None:
    (tmp_path / "coded.py").write_text(PROGRAM)
    lab = ("lab", "--nodes", "4", "--per-node", "2", "--order", order, "--no-check")
    done = closeranks(*lab, "--", "coded.py", cwd=tmp_path)
    if "emulated cluster" in done.stderr or "not available here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = said(done.stdout)
    assert len(lines) == 8
    for rank, told, coded, plain in lines:
        assert told == ("ValueError:True" if rank == "1" else "PeerLost:True"), done.stdout
        assert 0 < int(coded) <= 1.1 * int(plain), done.stdout
