"""How a rank writes what other ranks will read: through its caches, or past them."""

from __future__ import annotations


class StoreChoice:
    """Whether a half is packed past the caches: what packing costs decides.

    Where two cores share a cache, lines that the other core has read are cheap to
    write again.  Where they share none, the lines are fetched back first, and
    stores past the caches win by far.  A job may be moved from one to the other,
    so both are tried now and then.
    """

    #: Packing fewer bytes tells nothing.
    _LEAST = 1 << 17
    #: Of so many rounds one tries the other way.
    _OFTEN = 16
    #: Past the caches has to win so clearly, for others read farther away then.
    _WINS = 1.5
    #: How much slower than the least so far a way may seem, a round after the other.
    _RISE = 1.25

    def __init__(self) -> None:
        self._costs = [float("inf"), float("inf")]
        self._rounds = 0

    def past(self, nbytes: int) -> bool:
        """Say how to pack.  Local.

        Parameters
        ----------
        nbytes : int
            How much.

        Returns
        -------
        bool
            Whether past the caches.
        """
        if nbytes < self._LEAST:
            return False
        self._rounds += 1
        through, past = self._costs
        wins = past * self._WINS < through
        tries = self._rounds % self._OFTEN == 2
        return wins != tries

    def note(self, nbytes: int, seconds: float, *, past: bool) -> None:
        """Note what packing has cost.  Local.

        Parameters
        ----------
        nbytes : int
            How much was packed.
        seconds : float
            How long it took.
        past : bool
            Whether past the caches.
        """
        if nbytes >= self._LEAST:
            self._costs[past] = min(seconds / nbytes, self._costs[past] * self._RISE)
