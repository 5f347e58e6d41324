"""Every order of messages between three nodes, two of which propose: one value at most."""

from __future__ import annotations

import random
from copy import copy
from typing import NamedTuple

import pytest

from closeranks.collectives.coded.transport.ballots import Acceptor, Proposer

NODES = 3
VALUES = (b"first", b"other")


class Message(NamedTuple):
    """One message; ``node`` is the acceptor, ``proposer`` the other end."""

    kind: str
    node: int
    proposer: int
    ballot: int
    accepted: int = 0
    value: bytes = b""


class State(NamedTuple):
    """All that the nodes know, and what is on its way."""

    acceptors: tuple[Acceptor, ...]
    proposers: tuple[Proposer, ...]
    messages: frozenset[Message]
    begun: tuple[int, ...]
    decided: frozenset[bytes]

    def key(self) -> object:
        """Equal for states that go on alike."""
        known = tuple(
            (one.ballot, one.value, one._own, one._highest, frozenset(one._promised),
             frozenset(one._accepted))
            for one in self.proposers
        )  # fmt: skip
        return self.acceptors, known, self.messages, self.begun, self.decided


def _cloned(one: Proposer) -> Proposer:
    other = copy(one)
    other._promised, other._accepted = set(one._promised), set(one._accepted)
    return other


def delivered(state: State, message: Message) -> State:
    """Deliver a message; it may come again, as another rank of the node has it, too."""
    acceptors, proposers = list(state.acceptors), list(state.proposers)
    messages, decided = set(state.messages) - {message}, set(state.decided)
    node, at, ballot = message.node, message.proposer, message.ballot
    if message.kind == "prepare":
        found = acceptors[node].prepare(ballot)
        if found is not None:
            acceptors[node] = found
            messages.add(Message("promise", node, at, ballot, found.accepted, found.value))
    elif message.kind == "accept":
        found = acceptors[node].accept(ballot, message.value)
        if found is not None:
            acceptors[node] = found
            messages.add(Message("accepted", node, at, ballot))
    else:
        one = proposers[at] = _cloned(proposers[at])
        if message.kind == "promise":
            if one.hear_promise(node, ballot, message.accepted, message.value):
                value = one.value or b""
                messages |= {Message("accept", n, at, ballot, 0, value) for n in range(NODES)}
        elif one.hear_accepted(node, ballot):
            decided.add(one.value or b"")
    kept = frozenset(one for one in messages if _matters(one, proposers))
    return State(tuple(acceptors), tuple(proposers), kept, state.begun, frozenset(decided))


def _matters(message: Message, proposers: list[Proposer]) -> bool:
    """Leave out answers that change nothing any more: fewer orders."""
    one = proposers[message.proposer]
    if message.kind == "promise":
        return message.ballot == one.ballot and one.value is None
    if message.kind == "accepted":
        return message.ballot == one.ballot and 2 * len(one._accepted) <= NODES
    return True


def begun(state: State, at: int) -> State:
    """Let a node begin a ballot; it knows the highest one that it has promised."""
    proposers = list(state.proposers)
    one = proposers[at] = _cloned(proposers[at])
    ballot = one.begin(VALUES[at], state.acceptors[at].promised)
    messages = state.messages | {Message("prepare", n, at, ballot) for n in range(NODES)}
    counts = tuple(n + (which == at) for which, n in enumerate(state.begun))
    begins = State(state.acceptors, tuple(proposers), messages, counts, state.decided)
    own = Message("prepare", at, at, ballot)  # a node asks itself at once
    answered = delivered(begins, own)
    promise = [one for one in answered.messages if one.kind == "promise" and one.node == at]
    return delivered(answered, promise[0]) if promise else answered


START = State(
    (Acceptor(),) * NODES, tuple(Proposer(at, NODES) for at in range(2)), frozenset(),
    (0, 0), frozenset(),
)  # fmt: skip


def explore(most: tuple[int, int]) -> tuple[int, set[frozenset[bytes]]]:
    """Go through all orders; messages that never come are orders that end early."""
    seen, left, outcomes = {START.key()}, [START], set()
    while left:
        state = left.pop()
        outcomes.add(state.decided)
        if len(state.decided) > 1:
            break
        following = [delivered(state, message) for message in state.messages]
        following += [begun(state, at) for at in range(2) if state.begun[at] < most[at]]
        for one in following:
            key = one.key()
            if key not in seen:
                seen.add(key)
                left.append(one)
    return len(seen), outcomes


def test_never_two_values() -> None:
    states, outcomes = explore((1, 1))
    assert states > 10_000
    assert outcomes == {frozenset(), frozenset({VALUES[0]}), frozenset({VALUES[1]})}


def test_never_two_values_in_more_ballots() -> None:
    for seed in range(1500):
        draw, state = random.Random(seed), START
        for _ in range(60):
            ballots = [at for at in range(2) if state.begun[at] < 3 and draw.random() < 0.1]
            if ballots or not state.messages:
                state = begun(state, draw.choice(ballots or [0, 1]))
            else:
                state = delivered(state, draw.choice(sorted(state.messages)))
            assert len(state.decided) <= 1, seed


def test_an_acceptor_that_forgets_its_promise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Acceptor, "accept", lambda self, ballot, value: self._replace(accepted=ballot, value=value)
    )
    _, outcomes = explore((1, 1))
    assert frozenset(VALUES) in outcomes


def test_ballots_of_nodes_differ() -> None:
    proposers = [Proposer(cell, 5) for cell in range(5)]
    ballots = [one.begin(b"", seen) for seen in (0, 3, 17) for one in proposers]
    assert len(set(ballots)) == len(ballots)
    assert all(one > 17 for one in ballots[-5:])
