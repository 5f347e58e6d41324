"""Short runs of the fuzzer, with a seed by the day; the corpus of what it has found."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.__main__ import CORPUS, run, today
from tests.fuzz.launch import ROOT, launch
from tests.fuzz.mutations import MUTATIONS
from tests.fuzz.program import written
from tests.fuzz.sequences import MOST, drawn
from tests.fuzz.shapes import OPERATIONS, shapes

SEED = today()
#: Seconds for each number of ranks; the more ranks, the more there is to go wrong.
SECONDS = {1: 3, 2: 10, 3: 15, 4: 12}
FOUND = sorted(CORPUS.glob("*.json"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", SECONDS)
def test_sequences_of_the_day(mpi_library: str, ranks: int) -> None:
    found = run(SEED, SECONDS[ranks], ranks, most=1)
    assert found.sequences > 0
    for outcome, _ in found.failures:
        pytest.fail(f"{outcome.what}; make fuzz SEED={SEED} RANKS={ranks} shrinks it:\n"
                    f"sequence {outcome.sequence}, {mpi_library}: {outcome.detail}")  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.share(1)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_what_was_found_before(mpi_library: str, ranks: int) -> None:
    sequences = [json.loads(path.read_text()) for path in FOUND]
    chosen = [one for one in sequences if one["ranks"] == ranks]
    if not chosen:
        pytest.skip(f"nothing was found on {ranks} ranks")
    outcome = launch({"sequences": chosen}, ranks, limit_s=250)
    assert not outcome.what, f"{mpi_library}: {outcome.detail}"
    assert outcome.done["sequences"] == len(chosen)


def test_sequences_are_the_same_everywhere() -> None:
    for number in range(20):
        assert drawn(SEED, number, 3) == json.loads(json.dumps(drawn(SEED, number, 3)))


def test_every_operation_and_way_is_drawn() -> None:
    steps = [step for number in range(200) for step in drawn(1, number, 4)["steps"]]
    calls = [step for step in steps if step["do"] == "call"]
    drawn_ways = Counter((step["op"], step["mode"]) for step in calls)
    assert {(op, mode) for op in OPERATIONS for mode in ("", "I", "_init")} == drawn_ways.keys()
    assert len({step["kind"] for step in calls}) > 20
    assert len({step["wrong"] for step in steps if step["do"] == "wrong"}) > 5


def test_no_message_is_too_long() -> None:
    for number in range(200):
        for step in drawn(2, number, 4)["steps"]:
            if step["do"] != "call":
                continue
            for rank in range(4):
                for part in shapes(step, rank, 4):
                    if part is not None and not isinstance(part, str):
                        assert part.entries <= MOST + 8


def test_programs_can_be_read() -> None:
    for number in range(50):
        compile(written(drawn(3, number, 3)), "program", "exec")


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_fit(name: str) -> None:
    for patch in MUTATIONS[name]:
        assert Path(ROOT / patch.file).read_text().count(patch.old) == 1
