"""Errors say who, what and how far, and survive the way to another rank."""

from __future__ import annotations

import pickle

import pytest

from closeranks import errors

EXAMPLES = [
    errors.UsageError("Bcast", "root 9 of 4 ranks", "pass 0..3"),
    errors.TopologyError("from_json", "format 9, newest known is 1", "update closeranks"),
    errors.Disagreement("Allreduce", {1: "count 4", 0: "count 3", 2: "count 3"}),
    errors.PlanError("simulate", "rank 2 waits for a message nobody sends"),
    errors.PeerError("Recv", [2]),
    errors.PeerLost("Allreduce", [3], seats=[7], cause="exit status 9"),
    errors.PeerLate("Barrier", [3, 1], waited_s=2.5, limit_s=2.0),
    errors.Revoked("Send", [1]),
    errors.CodeError("decode", "the code has no such worker", "pass 0..3"),
    errors.TooManyErasures("rebuild", [3, 7, 11], 2, "restore from the file tier"),
    errors.Corrupted("read", rank=2, offset=4096, expected="0xab", found="0xcd"),
    errors.CheckpointError("save", "disk full", "free 3 GB"),
    errors.NotFound("restore", "no step 7 of run 'a'", "see steps()"),
    errors.Incomplete("restore", ["w1", "w2"], "ask for an older step"),
    errors.Unavailable("lstopo", "apt-get install hwloc-nox"),
    errors.WrongType("Bcast", "a str as buffer", "pass an array"),
    errors.UnknownCode("Bcast", "no datatype '@x'", "pass 'd'"),
    errors.WrongHandle("Communicator", "it is a handle of no communicator of ours"),
]


def test_every_class_has_an_example() -> None:
    named = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    known = {kind for kind in named if issubclass(kind, errors.Error)}
    assert known - {type(error) for error in EXAMPLES} == {errors.Error}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_it_arrives_whole(error: errors.Error) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
    assert repr(copy) == f"{type(error).__name__}({str(error)!r})"


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (EXAMPLES[0], ValueError),
        (EXAMPLES[1], ValueError),
        (EXAMPLES[12], FileNotFoundError),
        (EXAMPLES[14], ImportError),
        (EXAMPLES[15], TypeError),
        (EXAMPLES[15], errors.UsageError),
        (EXAMPLES[16], KeyError),
        (EXAMPLES[16], errors.UsageError),
    ],
)
def test_it_is_the_builtin_people_expect(error: errors.Error, builtin: type) -> None:
    assert isinstance(error, builtin)


def test_texts_name_the_ranks_the_bound_and_the_way_out() -> None:
    assert str(EXAMPLES[0]) == "Bcast: root 9 of 4 ranks; pass 0..3"
    assert str(EXAMPLES[2]) == (
        "Allreduce: ranks disagree: count 3 on ranks 0, 2; count 4 on rank 1; "
        "pass the same on every rank"
    )
    assert "ranks 1, 3 not arrived after 2.5 s, limit 2 s" in str(EXAMPLES[6])
    assert "lost ranks 3, 7, 11, code tolerates 2" in str(EXAMPLES[9])


def test_many_ranks_are_named_shortly() -> None:
    text = str(errors.PeerLost("Allreduce", range(4096)))
    assert "ranks 0, 1, 2, 3, 4, 5, ... (4096 in all) lost" in text


def test_attributes_are_plain_and_sorted() -> None:
    error = errors.PeerLost("Allreduce", [5, 2, 5], seats=[9, 4])
    assert (error.ranks, error.seats, error.operation) == ((2, 5), (4, 9), "Allreduce")
