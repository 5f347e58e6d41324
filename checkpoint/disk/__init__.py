"""Disk: committed saves as HDF5 files, one for each node.

In reading order:

* ``node_file``: the part of a save that one node writes.
* ``hdf5_writer``: the layout of its file, and how it is written.
* ``hdf5_reader``: the file read again, with nothing trusted.
* ``saved_files``: which saves on disk are whole, and bytes of them.
* ``export``: a save as one file of whole arrays.
"""
