"""Who can talk how: topology, discovery, groups, arrays, node memory, waiting."""

from __future__ import annotations

from closeranks.comms.devices import Device, Devices
from closeranks.comms.groups import Groups
from closeranks.comms.link import Link
from closeranks.comms.topology import Topology

__all__ = ["Device", "Devices", "Groups", "Link", "Topology"]
