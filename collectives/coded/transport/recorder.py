"""Recorder"""

from __future__ import annotations


class Recorder:
    def note(self, s: float) -> None: ...
