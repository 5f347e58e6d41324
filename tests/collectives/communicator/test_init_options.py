"""What the caller of `init` may ask for, and what the environment adds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from closeranks.collectives.communicator.init_options import InitOptions
from closeranks.comms.mpi import ulfm
from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError, UsageError

PLAIN: dict[str, Any] = {
    "ranks": 4,
    "whole": True,
    "in_order": True,
    "topology": None,
    "on_failure": "replace",
    "spares": 0,
    "recruits": None,
    "timeout_s": None,
    "recovery_timeout_s": 30,
    "tuning": None,
    "deterministic": False,
    "check": None,
    "faults": False,
}


@pytest.fixture(autouse=True)
def survives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose ranks may die, and nothing in the environment."""
    monkeypatch.setattr(ulfm, "is_on", lambda: True)
    for name in ("SPARES", "FAULTS", "RECRUITS", "JOINS", "CHECK"):
        monkeypatch.delenv(f"CLOSERANKS_{name}", raising=False)


def asked(**wanted: Any) -> InitOptions:
    return InitOptions.parse(**(PLAIN | wanted))


def test_spares_of_the_command_line_are_those_of_the_whole_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOSERANKS_SPARES", "2")
    assert asked().spares == 2
    assert asked(spares=1).spares == 1
    assert asked(in_order=False).spares == 2
    assert asked(ranks=1, whole=False, on_failure="raise").spares == 0
    with pytest.raises(UsageError, match=r"CLOSERANKS_SPARES=2 .*on_failure='raise'"):
        asked(on_failure="raise")
    with pytest.raises(UsageError, match=r"CLOSERANKS_SPARES=2 .* of 2 ranks; leave one to work"):
        asked(ranks=2)


@pytest.mark.parametrize("text", ["two", "-1", "1.5"])
def test_spares_are_a_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CLOSERANKS_SPARES", text)
    with pytest.raises(UsageError, match=f"CLOSERANKS_SPARES={text}"):
        asked()


@pytest.mark.parametrize("spares", ["1", 1.5, None, -1])
def test_so_are_those_of_the_program(spares: Any) -> None:
    with pytest.raises(UsageError, match=r"spares=.*; give a number of ranks"):
        asked(spares=spares)


@pytest.mark.parametrize("limit", [0, -1, None, math.inf, math.nan, "30", 1e300])
def test_the_deadline_of_a_recovery_is_named(limit: Any) -> None:
    with pytest.raises(UsageError, match=r"recovery_timeout_s is .*give more than 1 seconds"):
        asked(recovery_timeout_s=limit)


@pytest.mark.parametrize("limit", [0, -1, math.nan, "2"])
def test_so_is_that_of_a_call(limit: Any) -> None:
    with pytest.raises(UsageError, match=r"timeout_s is .*give seconds above 0, or None"):
        asked(timeout_s=limit)


def test_faults_are_of_seats_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOSERANKS_FAULTS", "kill seat=3")
    assert asked().faults
    assert asked(ranks=1, whole=False).faults
    with pytest.raises(UsageError, match="no seat 3 among 3 ranks"):
        asked(spares=1)


def test_what_all_ranks_ask_for_alike() -> None:
    said = asked(tuning="here", faults=True).in_common()
    assert said == asked(tuning="there").in_common()
    once, again = asked(timeout_s=2, deterministic=1), asked(timeout_s=2.0, deterministic=True)
    assert once.in_common() == again.in_common()
    flat, pairs = Topology.regular(rank=4), Topology.regular(node=2, rank=2)
    assert asked(topology=flat).in_common() == asked(topology=Topology.regular(rank=4)).in_common()
    assert asked(topology=flat).in_common() != asked(topology=pairs).in_common()
    for other in (
        {"on_failure": "shrink"}, {"spares": 1}, {"timeout_s": 2}, {"check": True},
        {"topology": flat}, {"tuning": {"allreduce": "ring"}},
    ):  # fmt: skip
        assert said != asked(**other).in_common()


@pytest.mark.parametrize("name", sorted(PLAIN.keys() - {"ranks", "whole", "in_order"}))
def test_what_is_no_option_is_refused(name: str) -> None:
    for wrong in (object(), [1], 1.5j, np.zeros(3), b"x"):
        with pytest.raises(UsageError) as found:
            asked(**{name: wrong})
        assert found.value.remedy
    with pytest.raises(TopologyError, match="a topology of 3 ranks for 4"):
        asked(topology=Topology.regular(rank=3))
