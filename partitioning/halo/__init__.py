"""Halos: ghost cells around each rank's part, filled by the ranks that own them.

In reading order:

* `ghosts`: which cells come from whom; pure.
* `halo_arguments`: what is passed, read and checked; pure.
* `ghost_stage`: copies inside of an array, and sums.
* `array_address`: where an array lies.
* `element_kind`: a number of an element type, which goes with each message.
* `ghost_messages`: persistent requests over the cells of an array.
* `near_messages`, `near_kernels`: rings of slots in the memory of a node.
* `halo_traffic`: the communicator of a halo, its agreement and its errors.
* `halo`: `Halo`.
"""
