"""A rank of another node leaves a coded sum before its first gradients: all hear of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.child import closeranks, said

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

PROGRAM = """\
import faulthandler, signal, sys, threading, time
from itertools import product
import numpy as np
import closeranks as cr
from closeranks.collectives.coded import CodedAllreduce, Uncoded

faulthandler.dump_traceback_later(90, exit=True)


def interrupt(*_):
    others.send("come", n - 1)
    time.sleep(0.001)
    raise ZeroDivisionError("mine")


def turn(leaver, by, pause_s):
    def part(number):
        if number == n - 1:
            others.recv(source=leaver)
            time.sleep(pause_s)
        return np.ones(3)

    def steps():
        coded.step(part, n)
        coded.step(lambda number: np.ones(3), n)

    def step():
        try:
            steps()
        except cr.PeerLost as error:
            heard.append(error)

    heard, thread = [], threading.Thread(target=step)
    try:
        with CodedAllreduce(comm, Uncoded(n)) as coded:
            if comm.rank == leaver and by == "thread":
                thread.start()
                time.sleep(0.05)
                interrupt()
            elif comm.rank == leaver:
                signal.setitimer(signal.ITIMER_REAL, 0.05)
            steps()
        return "nothing"
    except (ZeroDivisionError, cr.PeerLost) as error:
        return f"{type(error).__name__}:{'mine' in str(error)}"
    finally:
        if thread.ident:
            thread.join()
            assert "mine" in str(heard[0]), heard


with cr.init() as comm:
    n, others, found = comm.size, comm.Dup(), set()
    signal.signal(signal.SIGALRM, interrupt)
    for leaver, by, pause_s in product((0, 1), ("thread", "signal"), (0, 0.0005, 0.002, 0.01)):
        found.add((comm.rank == leaver, turn(leaver, by, pause_s)))
        assert comm.allreduce(1) == n
    told = " ".join(f"{mine}:{what}" for mine, what in sorted(found))
    sys.stdout.write(f"{comm.rank} {told}\\n")
    sys.stdout.flush()
"""


@pytest.mark.share(2)
def test_a_rank_that_leaves_before_the_first_gradients(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(PROGRAM)
    lab = ("lab", "--nodes", "3", "--per-node", "2", "--no-check")
    done = closeranks(*lab, "--", "leaves.py", cwd=tmp_path)
    if "emulated cluster" in done.stderr or "not available here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = said(done.stdout)
    assert len(lines) == 6
    told = {word for line in lines for word in line[1:]}
    assert told == {"True:ZeroDivisionError:True", "False:PeerLost:True"}
