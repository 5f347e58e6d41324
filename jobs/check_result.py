"""One line of the doctor's report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Parameters
    ----------
    check : str
        What was looked at.
    state : str
        ``"ok"``, ``"warn"`` (something optional does not work, or will be
        slow) or ``"fail"`` (something that must work does not).
    found : str
        What is there.
    remedy : str, optional
        What to do about it.
    """

    check: str
    state: str
    found: str
    remedy: str = ""

    def row(self) -> dict[str, str]:
        """Give the finding as a flat object for JSON.

        Returns
        -------
        dict of str to str
            Its four fields.
        """
        return asdict(self)


def looked(
    check: str, look: Callable[[], Iterable[Finding]], *, needed: bool = True
) -> Iterator[Finding]:
    """Make a finding of what keeps a check from looking.

    Parameters
    ----------
    check : str
        What is looked at.
    look : callable
        Gives what it finds.
    needed : bool, optional
        Whether it must work.

    Yields
    ------
    Finding
        What was found; last that a file or folder may not be read, if that is so.
    """
    try:
        yield from look()
    except OSError as wrong:
        state = "fail" if needed else "warn"
        yield Finding(check, state, f"cannot look: {wrong}", "let this user read and execute it")
