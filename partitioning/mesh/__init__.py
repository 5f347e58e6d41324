"""Meshes: ranks along named axes, and what a step on them costs.

* `volume`: what each rank sends along an axis.
* `rank_order`: the rank at each position.
* `traffic`: what crosses each level of a machine.
* `mesh_cost`: the price of that traffic.
* `mesh`: `Mesh`, which has all of it.
* `mesh_drawing`: a mesh on the boxes of its machine, as a picture.
"""
