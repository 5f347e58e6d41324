"""What one thread goes through while others add to it, and what they let go of."""

from __future__ import annotations

import gc
import threading

import pytest

from closeranks.comms.registry import Registry


class Thing:
    """Anything that can be referred to weakly."""


def test_gives_what_was_added_and_still_lives() -> None:
    registry, one, other, dropped = Registry[Thing](), Thing(), Thing(), Thing()
    assert not registry
    for thing in (one, one, other, dropped):
        registry.add(thing)
    del thing, dropped
    gc.collect()
    assert registry
    assert list(registry) == [one, other]
    registry.discard(one)
    registry.discard(one)
    assert list(registry) == [other]


def test_what_goes_while_it_is_gone_through_is_still_met() -> None:
    registry, things = Registry[Thing](), [Thing() for _ in range(3)]
    for thing in things:
        registry.add(thing)
    met = []
    for thing in registry:
        registry.discard(thing)
        registry.add(Thing())
        met.append(thing)
    assert met == things


@pytest.mark.usefixtures("hurried")
def test_threads_add_while_one_goes_through_it() -> None:
    registry, over, failed = Registry[Thing](), threading.Event(), []

    def look() -> None:
        try:
            while not over.is_set():
                for thing in registry:
                    assert isinstance(thing, Thing)
        except RuntimeError as error:
            failed.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    kept = []
    for _ in range(30_000):
        kept.append(Thing())
        registry.add(kept[-1])
        if len(kept) > 50:
            registry.discard(kept.pop(0))
            kept.pop(0)
    over.set()
    looking.join()
    assert not failed
