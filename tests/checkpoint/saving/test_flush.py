"""Who waits for a save on its way to disk hears of its end, whatever happens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from closeranks.checkpoint.control.pending import Pending
from closeranks.checkpoint.control.single_process import SingleProcessChannel
from closeranks.checkpoint.saving.flush import Flushing, _Job
from closeranks.errors import CheckpointError


def test_what_is_met_in_removing_a_file_keeps_nobody_waiting() -> None:
    def fail(job: Any) -> None:
        raise ZeroDivisionError

    flushing = cast(Any, Flushing.__new__(Flushing))
    flushing._channel, flushing._nodes = (
        SingleProcessChannel(),
        SimpleNamespace(here=0, rank=0, turn=lambda *_: 0),
    )
    flushing._tried, flushing._discard = lambda _: CheckpointError("persist", "full"), fail
    job = _Job(cast(Any, None), Pending(1))
    with pytest.raises(ZeroDivisionError):
        flushing._do(job)
    with pytest.raises(CheckpointError, match="full"):
        job.pending.persisted.wait(0)
    assert job.done.is_set()
