"""One line of the doctor's report."""

from __future__ import annotations

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
