"""Who can talk how: topology, discovery, groups, arrays, node memory, waiting."""

from __future__ import annotations

from closeranks.comms.topology.level_communicators import Groups
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_description import Device, Devices
from closeranks.comms.topology.topology import Topology

__all__ = ["Device", "Devices", "Groups", "Link", "Topology"]
