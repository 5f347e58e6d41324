"""What is remembered: copies of a job's state in the memory of its nodes.

So far the erasure code that protects them; it works without MPI.
"""

from __future__ import annotations

from closeranks.checkpoint.erasure import Code
from closeranks.checkpoint.intervals import interval

__all__ = ["Code", "interval"]
