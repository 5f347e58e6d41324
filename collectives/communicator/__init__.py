"""Communicator: an `MPI.Intracomm` whose collectives know the hierarchy.

In reading order:

* ``init_options``, ``initialization``: `init`, and the options it takes;
* ``communicator``: the class `Communicator`, put together of what follows;
* ``blocking``, ``nonblocking``, ``persistent_calls``: the sixteen collectives
  in three forms;
* ``object_calls``: the lower-case calls, with Python objects;
* ``derived_communicators``, ``children``: communicators made from others;
* ``adoption``: the parts that a communicator of a family gets;
* ``membership``, ``kept_worlds``: its members, and its place after a recovery;
  what carries its plans;
* ``closing``: its end;
* ``gradient_buckets``: many arrays, combined a bucket at a time;
* ``late_methods``: methods whose work lies in packages above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator

__all__ = ["Communicator"]


def __getattr__(name: str) -> object:
    """Import what the package shows when it is first asked for."""
    if name != "Communicator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from closeranks.collectives.communicator.communicator import Communicator

    return Communicator
