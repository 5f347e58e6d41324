"""Files in memory that the processes of one node share.

* `shared_folder`: this user's folder in ``/dev/shm``.
* `pages`: reserve, map and enlarge the pages of a file.
* `shared_file`: make a file, and map it on all ranks of a node.
* `node_identity`: boot identity and addresses of this machine.
"""
