"""Discovery: reads the machine, and makes one topology for all ranks.

* `sysfs`: hardware from Linux ``/sys`` and ``/proc``.
* `hwloc`: hardware from the XML of lstopo.
* `nvml`: GPUs from NVIDIA's management library.
* `slurm_environment`: position in SLURM's network topology.
* `node_hardware`: one description of this node; usable cores.
* `level_rules`: levels of a topology from the positions of ranks.
* `rank_reports`: the record that each rank contributes.
* `discovery`: the two collectives, and the topology from all records.
* `link_survey`: messages timed between groups of ranks.
* `link_estimate`: bandwidths and links from these samples.
"""
