"""Placement: which rank stands where on a mesh, by the cost of its messages.

* `workload`: the messages of a step, and what they cost in a given order.
* `ranked`: `Placement`, and the list of the best.
* `machine_tiers`: a machine as nested equal groups.
* `arrangements`: all orders, but for symmetries of the machine.
* `exhaustive`: the cheapest of all, where they are few.
* `tilings`: orders that give each level a block of the mesh.
* `near_tilings`: the same for machines of unequal groups.
* `graph_partition`: positions cut into groups with little between them.
* `mesh_recognition`: a mesh found again in a matrix of bytes.
* `swaps`: an order improved by exchanges of two ranks, or of two groups.
* `mesh_search`: `place`.
* `graph_search`: `place_graph`.
* `grid_search`: `cartesian`.
"""
