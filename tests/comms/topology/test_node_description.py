"""Reading a node: hwloc's XML, /sys trees, NVML, PCI paths."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from closeranks.comms.discovery import hwloc, nvml, sysfs
from closeranks.comms.discovery.node_hardware import describe
from closeranks.comms.discovery.rank_reports import device_table, usable_nics
from closeranks.comms.topology.node_description import (
    Domain,
    Fact,
    Gpu,
    Nic,
    bound_domain,
    nearest,
    pci_distance,
)
from closeranks.comms.topology.topology_json import decode_node, encode_node
from closeranks.errors import TopologyError

Recorded = Callable[[str], tuple[Path, Any]]
H100 = "node_8gpu_8nic.json"
CARDS = [f"mlx5_{i}" for i in (0, 3, 4, 5, 6, 9, 10, 11)]


def domains(number: int, cpus: int) -> tuple[Domain, ...]:
    """Neighbouring domains of equal size."""
    return tuple(Domain(i, tuple(range(cpus * i, cpus * (i + 1)))) for i in range(number))


def test_hwloc_synthetic(fixtures: Path) -> None:
    found = hwloc.parse((fixtures / "hwloc_2x2x2x4.xml").read_text())
    assert found.packages == Fact(domains(2, 16), "hwloc")
    assert found.numa == Fact(domains(4, 8), "hwloc")
    assert found.l3 == Fact(domains(8, 4), "hwloc")
    assert found.cores == 32


def test_hwloc_domains_partition_their_parents(fixtures: Path) -> None:
    found = hwloc.parse((fixtures / "hwloc_2x2x2x4.xml").read_text())
    for inner, outer in ((found.l3, found.numa), (found.numa, found.packages)):
        assert inner.value is not None
        assert all(bound_domain(domain.cpus, outer) >= 0 for domain in inner.value)
        assert sorted(cpu for domain in inner.value for cpu in domain.cpus) == list(range(32))


def test_hwloc_finds_cards_in_the_pci_tree() -> None:
    xml = """<?xml version="1.0"?><!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0">
    <object type="Machine" cpuset="0x3" nodeset="0x3">
     <object type="Package" os_index="1" cpuset="0x2" nodeset="0x2">
      <object type="NUMANode" os_index="1" cpuset="0x2" nodeset="0x2"/>
      <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[40-4f]">
       <object type="Bridge" bridge_type="1-1" pci_busid="0000:40:01.0" bridge_pci="0000:[41-42]">
        <object type="PCIDev" pci_busid="0000:41:00.0">
         <object type="OSDev" name="ib0" osdev_type="2"/><object type="OSDev" name="mlx5_0"
          osdev_type="3"/></object></object></object></object></object></topology>"""
    ethernet, infiniband = hwloc.parse(xml).nics
    assert infiniband.name == "mlx5_0"
    assert infiniband.fabric == "infiniband"
    assert ethernet.numa == Fact(1, "hwloc")
    assert ethernet.pci == Fact(("pci0000:40", "0000:40:01.0", "0000:41:00.0"), "hwloc")


BOMB = (
    '<!DOCTYPE topology [<!ENTITY a "aaaaaaaaaa">'
    + "".join(
        f'<!ENTITY {n} "{f"&{p};" * 10}">' for p, n in zip("abcdefgh", "bcdefghi", strict=True)
    )
    + "]><topology>&i;</topology>"
)


@pytest.mark.parametrize(
    ("xml", "says"),
    [
        (BOMB, "declarations"),
        (
            '<!DOCTYPE topology [<!ENTITY x SYSTEM "file:///etc/passwd">]><topology/>',
            "declarations",
        ),
        ('<!DOCTYPE html SYSTEM "x"><topology/>', "document type"),
        ("<html/>", "root is 'html'"),
        ("", "no XML"),
        ("<topology><object></topology>", "no XML"),
        ("<topology>" + "<object>" * 1000, "levels"),
        ("<topology>" + "<a/>" * 300_000 + "</topology>", "objects"),
        ('<topology><object type="Package" cpuset="0xf...f"/></topology>', "the set"),
        ('<topology><object type="Package" cpuset="' + "0x1," * 9000 + '"/></topology>', "the set"),
        ('<topology><object type="Package" os_index="-1" cpuset="0x1"/></topology>', "os_index"),
    ],
)
def test_hostile_xml_is_refused(xml: str, says: str) -> None:
    start = time.perf_counter()
    with pytest.raises(TopologyError, match=says):
        hwloc.parse(xml)
    assert time.perf_counter() - start < 5


def test_sets_of_hwloc_and_of_the_kernel() -> None:
    assert hwloc.cpu_set("0x00000001,0x80000000,,0x3") == (0, 1, 95, 96)
    assert sysfs.cpu_list("0-2,5,7-8") == (0, 1, 2, 5, 7, 8)
    assert sysfs.cpu_list("") == sysfs.cpu_list("x,9-") == ()


def test_recorded_node(recorded: Recorded) -> None:
    root, library = recorded(H100)
    node = describe(root, "", library)
    first = tuple(range(56)) + tuple(range(112, 168))
    second = tuple(range(56, 112)) + tuple(range(168, 224))
    both = Fact((Domain(0, first), Domain(1, second)), "sysfs")
    assert node.packages == node.numa == node.l3 == both
    assert node.distances == Fact(((10, 21), (21, 10)), "sysfs")
    assert node.boot_id == "6f1c1f0e-2b7c-4c0e-9d59-1a5a1e1f6a10"
    assert [nic.name for nic in node.nics] == [*CARDS, "eno3"]
    assert [nic.numa.value for nic in node.nics] == [0] * 4 + [1] * 4 + [0]
    assert {nic.bytes_per_s.value for nic in node.nics[:8]} == {50e9}
    assert node.nics[8].bytes_per_s == Fact(125e6, "sysfs")
    assert [nic.name for nic in usable_nics(node)] == CARDS
    assert [gpu.numa.value for gpu in node.gpus] == [0] * 4 + [1] * 4
    assert node.gpus[7].model == "NVIDIA H100 80GB HBM3"
    peers = tuple((f"GPU {i}", 450e9) for i in range(1, 8))
    assert node.gpus[0].nvlink == Fact(peers, "nvml")


def test_nearest_card_of_each_gpu(recorded: Recorded) -> None:
    root, library = recorded(H100)
    node = describe(root, "", library)
    devices = {device.name: device for device in device_table(node)}
    for i, card in enumerate(CARDS):
        assert (devices[f"GPU {i}"].path, devices[f"GPU {i}"].near) == ("PIX", (card,))
        assert (devices[card].path, devices[card].near) == ("PIX", (f"GPU {i}",))
        assert devices[card].bytes_per_s == 50e9
    paths = [[pci_distance(gpu, nic, 2) for nic in node.nics[:8]] for gpu in node.gpus]
    near, far = ["NODE"] * 8, ["SYS"] * 8
    assert paths == [
        ["PIX" if i == k else (near if i // 4 == k // 4 else far)[k] for k in range(8)]
        for i in range(8)
    ]


def test_a_description_travels_whole(recorded: Recorded) -> None:
    root, library = recorded(H100)
    node = describe(root, "", library)
    again = decode_node(encode_node(node))
    assert encode_node(again) == encode_node(node)
    assert (again.nics, again.numa, again.distances) == (node.nics, node.numa, node.distances)
    assert again.gpus[3].nvlink == node.gpus[3].nvlink
    assert device_table(again) == device_table(node)


def test_nothing_is_known_of_an_empty_tree(tmp_path: Path) -> None:
    node = describe(tmp_path, "<broken")
    assert (node.packages, node.numa, node.l3, node.distances) == (Fact(),) * 4
    assert (node.nics, node.gpus, node.boot_id) == ((), (), "")
    assert device_table(node) == ()


def test_virtual_machines_say_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/net/eth0"
    (folder / "device").mkdir(parents=True)
    for name, text in (("type", "1"), ("speed", "-1"), ("device/numa_node", "-1")):
        (folder / name).write_text(text)
    (nic,) = sysfs.nics(tmp_path)
    assert (nic.bytes_per_s, nic.numa, nic.pci) == (Fact(), Fact(), Fact())
    assert nic.usable == Fact(False, "sysfs")


def test_a_card_that_is_both_stands_there_once(tmp_path: Path) -> None:
    device = tmp_path / "sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0"
    for folder, files in (
        (
            "infiniband/mlx5_0",
            {"ports/1/rate": "100 Gb/sec (4X EDR)", "ports/1/state": "4: ACTIVE"},
        ),
        ("net/eth1", {"type": "1", "speed": "100000", "operstate": "up"}),
    ):
        for name, text in files.items():
            (device / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (device / folder / name).write_text(text)
        (device / folder / "device").symlink_to("../../")
        link = tmp_path / "sys/class" / folder
        link.parent.mkdir(parents=True)
        link.symlink_to(device / folder)
    (nic,) = sysfs.nics(tmp_path)
    assert (nic.name, nic.fabric, nic.bytes_per_s.value) == ("mlx5_0", "infiniband", 12.5e9)


def way(*parts: str, numa: int | None = 0) -> Nic:
    """A card at the end of a PCI way."""
    return Nic("x", pci=Fact(parts or None), numa=Fact(numa))


@pytest.mark.parametrize(
    ("a", "b", "path"),
    [
        (way("r0", "p", "up", "d1", "a"), way("r0", "p", "up", "d2", "b"), "PIX"),
        (way("r0", "p", "a.0"), way("r0", "p", "a.1"), "PIX"),
        (way("r0", "p", "up", "d1", "v", "e", "a"), way("r0", "p", "up", "d2", "b"), "PXB"),
        (way("r0", "p1", "a"), way("r0", "p2", "b"), "PHB"),
        (way("r0", "p", "a"), way("r1", "p", "b"), "NODE"),
        (way("r0", "p", "a"), way("r1", "p", "b", numa=1), "SYS"),
        (way("r0", "p", "a", numa=None), way("r1", "p", "b", numa=None), "SYS"),
        (way(), way("r1", "p", "b"), ""),
    ],
)
def test_pci_paths(a: Nic, b: Nic, path: str) -> None:
    assert pci_distance(a, b, 2) == pci_distance(b, a, 2) == path


def test_nearest_names_all_at_the_same_path() -> None:
    gpu = Gpu("GPU 0", pci=Fact(("r0", "p", "g")), numa=Fact(0))
    cards = [Nic(n, pci=Fact(("r1", "p", n)), numa=Fact(0)) for n in ("a", "b")]
    assert nearest(gpu, cards, 2) == ("NODE", "a", "b")
    assert nearest(gpu, [Nic("c")], 2) == ()


def test_place_is_unknown_for_who_may_leave() -> None:
    numa = Fact(domains(2, 4))
    assert [bound_domain(mask, numa) for mask in ({0}, {4, 7}, {3, 4}, set(), {9})] == [
        0,
        1,
        -1,
        -1,
        -1,
    ]
    assert bound_domain({0}, Fact()) == -1


def test_direct_nvlinks_and_buses(nvml_of: Callable[[list[dict[str, Any]]], Any]) -> None:
    pair = [
        {
            "bus": f"0000000{i}:0A:00.0",
            "name": "V100",
            "uuid": f"u{i}",
            "nvlink_version": 2,
            "nvlink_remote": [f"0000000{1 - i}:0A:00.0"] * 2,
        }
        for i in range(2)
    ]
    first, second = nvml.read_gpus(nvml_of(pair))
    assert first.pci.value == ("0000:0a:00.0",)
    assert second.pci.value == ("0001:0a:00.0",)
    assert first.nvlink.value == (("GPU 1", 50e9),)
    assert second.nvlink.value == (("GPU 0", 50e9),)
    assert nvml.bus_address("nonsense") == ""
    (first, _) = nvml.read_gpus(nvml_of([{**gpu, "nvlink_version": 99} for gpu in pair]))
    assert first.nvlink.value == (("GPU 1", 0.0),)
    (first, _) = nvml.read_gpus(nvml_of([{**gpu, "nvlink_remote": []} for gpu in pair]))
    assert first.nvlink == Fact()


@pytest.mark.parametrize(("ranks", "share"), [(1, 32), (2, 16), (4, 8), (64, 8)])
def test_a_rank_counts_on_its_share_of_the_last_cache(
    tmp_path: Path, ranks: int, share: int
) -> None:
    assert sysfs.l3_share(tmp_path, ranks) == 0
    cache = tmp_path / "sys/devices/system/cpu/cpu0/cache/index3"
    cache.mkdir(parents=True)
    (cache / "level").write_text("3")
    (cache / "size").write_text("32768K")
    (cache / "shared_cpu_list").write_text("0-3")
    assert sysfs.l3_share(tmp_path, ranks) == share << 20
    own = cache.parent / "index2"
    own.mkdir()
    (own / "level").write_text("2")
    (own / "size").write_text("256K")
    assert sysfs.l3_share(tmp_path, ranks) == 8 << 20
