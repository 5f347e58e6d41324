"""Whose turn it is to call MPI, among the threads of this package.

Open MPI 5.0.11 lets several threads call at once.  But where one of them
begins an agreement while another one takes a message of it, the message is put
off, and a pointer is written over its bits (``era_cb_fn`` of coll/ftagree):
the ranks agree on bits that nobody has given.  So threads take turns, and
nobody waits for an agreement inside of the library.
"""

from __future__ import annotations

import threading
from typing import Final

#: Held by the thread that calls MPI, if others of this package may do so too.
TURN: Final = threading.RLock()
