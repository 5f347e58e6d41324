"""What a rank makes of the news, without any other rank."""

from __future__ import annotations

import time
from typing import Any

import pytest

from closeranks.comms.liveness import failure_notices as module
from closeranks.comms.liveness import uncaught_error
from closeranks.comms.liveness.failure_notice import Notice, decoded, encoded, notice_of
from closeranks.comms.liveness.failure_notices import Notices
from closeranks.errors import Revoked, UsageError


class _Channel:
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: list[list[object]] = []

    def tell(self, message: bytes) -> None:
        self.told.append(decoded(message))


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Notices:
    """Rank 0 of three, that speaks into the void and waits for nobody."""
    monkeypatch.setattr(module, "_REFUSING_S", 0.02)
    made = Notices()
    made._others, made._channel = {1, 2}, _Channel()  # type: ignore[assignment]
    return made


def _told(one: Notices) -> list[list[object]]:
    channel: Any = one._channel
    return list(channel.told)


@pytest.mark.parametrize(
    ("error", "deed", "status"),
    [
        (ValueError("two\nlines"), "left by ValueError: two lines", 1),
        (SystemExit(3), "left by SystemExit: 3", 3),
        (SystemExit(), "left by SystemExit", 0),
        (SystemExit("no"), "left by SystemExit: no", 1),
        (KeyboardInterrupt(), "left by KeyboardInterrupt", 130),
        (None, "has given it up by abandon()", 1),
    ],
)
def test_a_notice_says_who_by_what_and_which_status(
    error: BaseException | None, deed: str, status: int
) -> None:
    assert notice_of(2, error) == Notice(2, deed, status)
    assert str(notice_of(2, error)).startswith("rank 2 ")


def test_what_cannot_be_read_is_no_message() -> None:
    assert decoded(b"\xff") == []
    assert decoded(b"{}") == []
    assert decoded(encoded("left", 1)) == ["left", 1]


def test_what_is_heard_first_counts(mine: Notices) -> None:
    news: list[int] = []
    mine.on_news = lambda: news.append(1)
    mine._hear(encoded("left", *Notice(2, "left by SystemExit: 3", 3)))
    mine._hear(encoded("left", *Notice(1, "left by ValueError: mine", 1)))
    with pytest.raises(Revoked, match=r"rank 2 left by SystemExit: 3") as caught:
        mine.check("Allreduce")
    assert caught.value.ranks == (2,)
    assert caught.value.cause == "left by SystemExit: 3"
    assert caught.value.for_good
    assert mine.all_left()
    assert news == [1]


def test_a_rank_of_a_derived_communicator_is_named_in_its_numbers(mine: Notices) -> None:
    mine._hear(encoded("left", *Notice(2, "left by ValueError", 1)))
    with pytest.raises(Revoked, match="of the communicator that init made") as caught:
        mine.check("Allreduce", (0, 2))
    assert caught.value.ranks == (1,)
    with pytest.raises(Revoked) as caught:
        mine.check("Allreduce", (0, 1))
    assert caught.value.ranks == ()


def test_who_leaves_by_what_another_has_done_tells_nobody(mine: Notices) -> None:
    mine._hear(encoded("left", *Notice(2, "left by ValueError", 1)))
    with pytest.raises(Revoked) as caught:
        mine.check("Allreduce")
    mine.leave(caught.value)
    assert _told(mine) == []


@pytest.mark.parametrize("before", [False, True])
def test_a_call_that_both_refuse_ends_nothing(mine: Notices, before: bool) -> None:
    calls = mine.count((0, 1, 2))
    said = encoded("refused", calls.key, 0, 1, "refused bcast: no", 1)
    if before:
        mine._hear(said)
    mine.refuse(calls, calls.begin(), "bcast", UsageError("bcast", "no"))
    if not before:
        mine._hear(said)
    assert mine._look() is None
    assert mine.notice is None


def test_a_call_that_another_refuses_ends_all_who_are_in_it(mine: Notices) -> None:
    calls = mine.count((0, 1, 2))
    calls.begin()
    mine._hear(encoded("refused", calls.key, 1, 1, "refused bcast: no", 1))
    assert mine._look() is not None  # it may come to that call yet
    assert not _told(mine)
    calls.begin()
    mine._look()
    time.sleep(0.03)
    mine._look()
    assert mine.notice == Notice(1, "refused bcast: no", 1)
    assert _told(mine) == [["ended", 1, "refused bcast: no", 1]]


def test_a_call_that_two_others_refuse_ends_by_the_first(mine: Notices) -> None:
    calls = mine.count((0, 1, 2))
    calls.begin()
    for rank in (1, 2):
        mine._hear(encoded("refused", calls.key, 0, rank, "refused bcast: no", 1))
    mine._look()
    time.sleep(0.03)
    mine._look()
    mine._look()
    assert mine.notice == Notice(1, "refused bcast: no", 1)
    assert _told(mine) == [["ended", 1, "refused bcast: no", 1]]


def test_communicators_of_other_ranks_are_told_apart(mine: Notices) -> None:
    keys = [mine.count(seats).key for seats in ((0, 1), (0, 2), (0, 1))]
    assert len(set(keys)) == 3
    calls = mine.count((0, 1))
    calls.begin()
    mine._hear(encoded("refused", keys[1], 0, 2, "refused bcast: no", 1))
    mine._look()
    time.sleep(0.03)
    mine._look()
    assert mine.notice is None


def test_a_call_of_the_library_has_a_second(mine: Notices, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[tuple[str, int]] = []
    monkeypatch.setattr(uncaught_error, "end_at_once", lambda *words: ends.append(words))
    monkeypatch.setattr(module, "INSIDE_S", 0.02)
    mine._hear(encoded("left", *Notice(2, "left by SystemExit: 3", 3)))
    mine._look()
    time.sleep(0.03)
    mine._look()  # it computes
    assert ends == []
    with mine.inside:
        mine._look()
        time.sleep(0.03)
        mine._look()
    assert [status for _, status in ends] == [3]
    assert "rank 2 left by SystemExit: 3" in ends[0][0]
