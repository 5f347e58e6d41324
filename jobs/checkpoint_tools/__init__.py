"""``closeranks checkpoint``: looks after what jobs have left to be remembered."""
