"""The choice of the next micro-batch: all orders in which a group may finish."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.collectives.coded import PartialRepetition
from closeranks.collectives.coded.schemes.task import CodedTask
from closeranks.collectives.coded.schemes.work_sharing import next_micro_batch
from closeranks.errors import CodeError, UsageError
from tests.collectives.coded.schemes.patterns import Run

Batch = tuple[int, int]


class _Group(NamedTuple):
    """What a group has done, and what each member computes now."""

    done: tuple[int, ...]
    taken: tuple[int, ...]
    now: tuple[Batch | None, ...]

    def choice(self, member: int, micro: int, *, helps: bool) -> Batch | None:
        return next_micro_batch(member, self.done, self.taken, micro, helps=helps)

    def begun(self, member: int, batch: Batch | None) -> _Group:
        """Let a member begin; it notes what it takes of another one."""
        taken = list(self.taken)
        if batch is not None and batch[0] != member:
            taken[batch[0]] |= 1 << batch[1]
        now = (*self.now[:member], batch, *self.now[member + 1 :])
        return _Group(self.done, tuple(taken), now)

    def ended(self, member: int) -> _Group:
        """Let a member finish what it computes."""
        done, batch = list(self.done), self.now[member]
        if batch is not None:
            done[batch[0]] |= 1 << batch[1]
        return self._replace(done=tuple(done))


def _undone(group: _Group, micro: int) -> set[Batch]:
    return {
        (owner, number)
        for owner, bits in enumerate(group.done)
        for number in range(micro)
        if not bits >> number & 1
    }


def _next(group: _Group, micro: int) -> Iterator[_Group]:
    """Give what may follow: a member finishes, and chooses what it does then."""
    for member in range(len(group.done)):
        ended = group.ended(member)
        undone = _undone(ended, micro)
        for helps in (False, True):
            chosen = ended.choice(member, micro, helps=helps)
            if chosen is not None:
                assert chosen in undone
            if helps:
                assert (chosen is None) == (not undone), "idle while something is undone"
                busy = {b for one, b in enumerate(ended.now) if one != member and b is not None}
                assert chosen not in busy or undone <= busy, "a second time, without need"
            yield ended.begun(member, chosen)


def _alone(group: _Group, micro: int, member: int) -> int:
    """Let all others stall for good; give how often the member finishes."""
    for steps in range(len(group.done) * micro + 2):
        group = group.ended(member)
        if not _undone(group, micro):
            return steps
        group = group.begun(member, group.choice(member, micro, helps=True))
    raise AssertionError("undone for ever")


def _explored(size: int, micro: int) -> set[_Group]:
    start = _Group((0,) * size, (0,) * size, (None,) * size)
    for member in range(size):
        start = start.begun(member, start.choice(member, micro, helps=False))
    seen, pending = {start}, [start]
    while pending:
        for after in _next(pending.pop(), micro):
            if after not in seen:
                seen.add(after)
                pending.append(after)
    return seen


@pytest.mark.parametrize(
    ("size", "micro"),
    [
        *[
            (size, micro)
            for size in (1, 2, 3, 4)
            for micro in (1, 2, 3)
            if size * micro < 8 or size == 3
        ],
        *[pytest.param(*one, marks=pytest.mark.exhaustive) for one in ((4, 2), (4, 3), (3, 5))],
    ],
)
def test_every_order_in_which_a_group_finishes(size: int, micro: int) -> None:
    states = _explored(size, micro)
    for state in states:
        for member in range(size):
            assert _alone(state, micro, member) <= len(_undone(state, micro)) + 1
    assert any(not _undone(state, micro) for state in states)


def test_calm_days_need_no_help() -> None:
    """Members that finish in turn do their own shares from the front, and no more."""
    group = _Group((0,) * 3, (0,) * 3, (None,) * 3)
    for number in range(4):
        for member in range(3):
            chosen = group.choice(member, 4, helps=True)
            assert chosen == (member, number)
            group = group.begun(member, chosen)
        for member in range(3):
            group = group.ended(member)
    assert [group.choice(member, 4, helps=True) for member in range(3)] == [None] * 3


def test_help_comes_from_the_far_end_of_the_share_with_most_left() -> None:
    assert next_micro_batch(0, [0b1111, 0b0011, 0b0001], [0, 0, 0], 4, helps=True) == (2, 3)
    assert next_micro_batch(0, [0b1111, 0b0011, 0b0001], [0, 0, 0b1000], 4, helps=True) == (1, 3)
    assert next_micro_batch(0, [0b1111, 0b0011, 0b0001], [0, 0, 0], 4, helps=False) is None


def test_where_all_is_under_way_the_own_share_comes_first() -> None:
    """Member 2 has the last one of member 0; member 1 is at its own last one."""
    assert next_micro_batch(0, [0b01, 0b01, 0b11], [0b10, 0, 0], 2, helps=True) == (0, 1)
    assert next_micro_batch(0, [0b11, 0b01, 0b11], [0b10, 0, 0], 2, helps=True) == (1, 1)


@given(st.randoms(use_true_random=True))
@pytest.mark.parametrize(("n", "s", "micro"), [(3, 2, 3), (5, 1, 2), (7, 2, 4), (4, 0, 2)])
def test_every_micro_batch_counts_once(n: int, s: int, micro: int, random: Random) -> None:
    """Workers finish in any order until all is done; the sum is right, in values."""
    scheme = PartialRepetition(n, s, micro)
    run = Run(scheme, 1)
    tasks = scheme.tasks(1)
    finished: list[list[CodedTask]] = [[] for _ in range(n)]
    for members in scheme.groups:
        size = len(members)
        group = _Group((0,) * size, (0,) * size, (None,) * size)
        while _undone(group, micro):
            member = random.randrange(size)
            if (batch := group.now[member]) is not None:
                slot = scheme.slot(members[member], *batch)
                finished[members[member]].append(tasks[members[member]][slot])
            group = group.ended(member)
            helps = random.random() < 0.5
            group = group.begun(member, group.choice(member, micro, helps=helps))
    for worker in random.sample(range(n), n):
        for task in finished[worker]:
            run.vectors[1, worker, task.slot] = run.vector(task)
        scheme.deliver(1, worker, finished[worker])
    assert scheme.decodable(1)
    assert run.error(1) < 1e-9
    parts = [tasks[term.worker][term.slot].parts[0] for term in scheme.decode(1)]
    assert sorted(parts) == list(range(n * micro))
    assert {term.weight for term in scheme.decode(1)} == {1.0}


def test_groups_shares_and_orders() -> None:
    scheme = PartialRepetition(7, 2, 2)
    assert scheme.groups == ((0, 1, 2, 3), (4, 5, 6))
    assert [scheme.group_of(worker) for worker in range(7)] == [0, 0, 0, 0, 1, 1, 1]
    assert [scheme.member_of(worker) for worker in range(7)] == [0, 1, 2, 3, 0, 1, 2]
    assert (scheme.parts, scheme.load, scheme.delay, scheme.exact) == (14, 1 / 7, 0, True)
    assert [task.parts[0] for task in scheme.tasks(1)[5]] == [10, 11, 13, 12, 9, 8]
    for worker, mine in enumerate(scheme.tasks(3)):
        group = scheme.groups[scheme.group_of(worker)]
        for task in mine:
            owner, number = divmod(task.parts[0], 2)
            assert scheme.slot(worker, group.index(owner), number) == task.slot
            assert (task.job, task.coefficients) == (3, (1.0,))


@given(st.integers(1, 40), st.data())
def test_groups_hold_all_and_their_sizes_differ_by_one_at_most(n: int, data: st.DataObject) -> None:
    s = data.draw(st.integers(0, n - 1))
    groups = PartialRepetition(n, s, 1).groups
    sizes = [len(group) for group in groups]
    assert [worker for group in groups for worker in group] == list(range(n))
    assert min(sizes) >= s + 1
    assert max(sizes) - min(sizes) <= 1
    assert len(groups) == n // (s + 1)


def test_whom_a_round_waits_for() -> None:
    scheme = PartialRepetition(4, 1, 2)
    assert scheme.must_wait(1, set()) == {0, 1, 2, 3}
    assert scheme.must_wait(1, {1}) == {2, 3}
    assert scheme.must_wait(1, {1, 2}) == set()
    tasks = scheme.tasks(1)
    scheme.deliver(1, 2, tasks[2][:2])
    scheme.deliver(1, 3, tasks[3][:1])
    assert scheme.must_wait(1, {0}) == {2, 3}
    with pytest.raises(CodeError, match="job 1 has 3 of 8 micro-batches"):
        scheme.decode(1)


def test_the_first_that_is_told_counts() -> None:
    scheme = PartialRepetition(2, 1, 2)
    tasks = scheme.tasks(1)
    scheme.deliver(1, 1, tasks[1][:3])
    scheme.deliver(1, 0, tasks[0])
    assert [term[:3] for term in scheme.decode(1)] == [
        (1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 1, 2),
    ]  # fmt: skip


def test_what_was_decoded_is_forgotten() -> None:
    scheme = PartialRepetition(4, 1, 2)
    for round in range(1, 200):
        for worker, mine in enumerate(scheme.tasks(round)):
            scheme.deliver(round, worker, mine[:2])
        other = scheme.copy()
        assert scheme.decode(round) == scheme.decode(round) == other.decode(round)
    assert len(scheme._counted) <= 2
    scheme.forget(199)
    assert not scheme.decodable(199)
    assert other.decodable(199)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((0, 0), "n is 0"), ((4, 4), "s is 4"), ((4, -1), "s is -1"),
        ((4, 1, 0), "micro is 0"), ((4, 1, 63), "micro is 63"), ((4, 1, 2.5), "micro is 2.5"),
    ],
)  # fmt: skip
def test_bad_parameters(arguments: tuple[int, ...], problem: str) -> None:
    with pytest.raises(UsageError, match=f"PartialRepetition: {problem}"):
        PartialRepetition(*arguments)


def test_deliveries_that_cannot_be() -> None:
    scheme = PartialRepetition(2, 1, 62)
    with pytest.raises(UsageError, match="a task of round 1 in round 2"):
        scheme.deliver(2, 0, scheme.tasks(1)[0][:1])
    with pytest.raises(UsageError, match="worker is 2"):
        scheme.deliver(1, 2, ())
    with pytest.raises(UsageError, match="a worker is 2"):
        scheme.must_wait(1, {2})
