"""Redistribution: one layout of an array turned into another.

* `part_holders`: which ranks hold a part, and which parts meet.
* `distribution_tree`: how elements get to all ranks that want them.
* `reduction_tree`: how terms become values at a rank that wants them.
* `part_moves`: what one rank does, as data.
* `conversion_plan`: `conversion`, bytes and time of all ranks.
* `box_pieces`: boxes in pieces of a bounded size.
* `exchange_rounds`: in which rounds messages are exchanged.
* `local_arrays`: what arrays must be, their bytes, their reductions.
* `rank_work`: one rank's part, ready to run on its arrays.
* `message_exchange`: rounds of packed messages.
* `store_choice`: whether packed parts are written past the caches.
* `window_exchange`: rounds inside a node, through memory that all read.
* `call_agreement`: that all ranks can do a call.
* `exchange`: `redistribute`.
"""
