"""Layouts: which part of a global array each rank of a mesh holds.

* `placements`: what a mesh axis does to an array: split, broadcast, partial.
* `box`: arithmetic of boxes, the index ranges of a part.
* `element_words`: an element type in words.
* `layout`: `Layout`, the part of every rank.
"""
