"""The state of a rank: from a tree of arrays to bytes, and back.

In reading order:

* ``shards``: `Shard` and `PerRank`, by which a rank marks its entries.
* ``state_tree``: the tree taken apart into leaves, and put together again.
* ``rank_image``: the bytes of a rank: a description, then its data.
* ``device_staging``: bytes on devices, copied through pinned memory.
"""
