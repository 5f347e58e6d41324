"""What lies in folders is listed as it is, whoever has put it there."""

from __future__ import annotations

import json
import os
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from closeranks.checkpoint.erasure.crc32c import crc32c
from closeranks.checkpoint.memory.slot_file import Slot, look
from closeranks.checkpoint.placement.slot_header import ENCODED, WRITING
from closeranks.checkpoint.restore import slot_inventory
from closeranks.checkpoint.restore.generation_choice import Availability, of_nodes, saves
from closeranks.errors import TopologyError, UsageError
from tests.checkpoint.ground import collect, make

RING = {node: (node,) for node in range(4)}
PAIRS = {node: (2 * node, 2 * node + 1) for node in range(4)}


def seen(*folders: Path) -> list[slot_inventory.Holding]:
    """Find what is in folders."""
    return slot_inventory.holdings(slot_inventory.look(slot_inventory.places(folders)))


def forge(path: Path, change: Any) -> None:
    """Change what a slot says of itself, with a check sum that fits."""
    data = bytearray(path.read_bytes())
    room = struct.unpack_from("<Q", data, 28)[0]
    for start in (0, room):
        magic, version, count, length, room, _ = struct.unpack_from("<8sIQQQI", data, start)
        if magic != b"clsrslot":
            continue
        said = json.loads(data[start + 40 : start + 40 + length])
        change(said)
        text = json.dumps(said, separators=(",", ":")).encode()
        text = text.ljust(length)
        assert len(text) <= room - 40
        total = crc32c(struct.pack("<IQQQ", version, count, len(text), room) + text)
        struct.pack_into("<8sIQQQI", data, start, magic, version, count, len(text), room, total)
        data[start + 40 : start + 40 + len(text)] = text
    path.write_bytes(data)


def test_saves_are_listed_with_what_is_left_of_them(shm: Path) -> None:
    make(shm, [5000] * 4, 1, ring=range(4), ranks=RING, epoch=1 << 32)
    make(shm, [5000] * 4, 1, ring=range(4), ranks=RING, generation=2, state=ENCODED)
    ground = make(shm, [5000] * 4, 1, ring=range(4), ranks=RING, generation=3, state=WRITING,
                  epoch=2 << 32)  # fmt: skip
    folders = collect(ground)
    rows = [one.row(time.time() + 90, owner="") for one in seen(*folders[:3])]
    assert [row["step"] for row in rows] == [30, 20, 10]
    assert [row["state"] for row in rows] == ["writing", "encoded", "committed"]
    assert [row["shares_present"] for row in rows] == [0, 3, 3]
    assert [row["restorable"] for row in rows] == [False, True, True]
    assert [row["verdict"] for row in rows[:2]] == [
        "it was being written", "restorable, 1 lost",
    ]  # fmt: skip
    assert all(90 <= row["age_s"] < 110 and row["ranks"] == 4 for row in rows)
    assert rows[1]["bytes"] == sum(path.stat().st_size for path in shm.glob("[abc]/*.0"))
    (one,) = [one for one in seen(folders[0]) if one.header and one.header.generation == 1]
    assert one.verdict == "group 0 has lost 3 members, its code tolerates 1"
    json.dumps(rows)


def test_the_time_of_a_slot_is_that_of_its_last_header(shm: Path) -> None:
    ground = make(shm, [5000] * 3, 1)
    path = next(iter(ground.paths().values()))
    os.utime(path, (1e9, 1e9))
    assert seen(shm)[0].files[0].changed == 1e9
    slot = Slot.attach(path)
    slot.write(slot.header)
    slot.close()
    assert time.time() - seen(shm)[0].changed < 60


@pytest.mark.parametrize("change", [
    lambda said: said.update(name="another"), lambda said: said.update(epoch=5),
    lambda said: said.update(member=2),
    lambda said: said["layout"].update(lanes=60_000),
    lambda said: said["layout"].update(ring=[0] * 250),
])  # fmt: skip
def test_a_header_that_does_not_fit_its_name_is_no_slot(shm: Path, change: Any) -> None:
    ground = make(shm, [5000] * 4, 1)
    path = ground.paths()[next(iter(ground.paths()))]
    forge(path, lambda _: None)
    assert look(path).step == 10  # which can be forged
    forge(path, change)
    whole, other = seen(shm)
    assert whole.verdict == "restorable, 1 lost"
    assert (other.state, other.objection is not None) == (slot_inventory.UNREADABLE, True)
    assert any(word in other.verdict for word in ("another slot", "layout", "its header says"))


def test_a_forged_number_of_groups_is_but_a_number(shm: Path) -> None:
    ground = make(shm, [5000] * 3, 1)
    for path in ground.paths().values():
        forge(path, lambda said: said.update(groups=1 << 60))
    (one,) = seen(shm)
    assert one.verdict == "nothing is left of erasure groups 1, 2, 3, 4, 5, 6, 7, 8, ..."


def test_what_is_no_slot_is_told_and_stays(shm: Path) -> None:
    ground = make(shm, [5000] * 4, 1)
    paths = list(ground.paths().values())
    secret = shm / "secret"
    secret.write_bytes(b"clsrslot")
    paths[0].unlink()
    paths[0].symlink_to(secret)
    os.truncate(paths[1], 5000)
    paths[2].write_bytes(b"somebody's letter")
    paths[3].unlink()
    paths[3].mkdir()
    (one,) = seen(shm)
    assert (one.state, len(one.files)) == (slot_inventory.UNREADABLE, 4)
    told = " ".join(file.problem for file in one.files)
    assert "its header says" in told or "no header is whole" in told
    kept = slot_inventory.remove(one, [paths[0].parent])
    assert "is no slot" in kept
    assert sorted(path.name for path in paths[0].parent.iterdir()) == sorted(
        path.name for path in (paths[0], paths[2], paths[3])
    )
    assert secret.read_bytes() == b"clsrslot"


def test_what_has_become_another_save_stays(shm: Path) -> None:
    ground = make(shm, [5000] * 3, 1)
    (one,) = seen(shm)
    first, *rest = ground.paths().values()
    slot = Slot.attach(first)
    slot.write(replace(slot.header, generation=7))
    slot.close()
    assert slot_inventory.remove(one, [first.parent]) == "overwritten meanwhile"
    assert list(first.parent.iterdir()) == [first]
    assert not any(path.exists() for path in rest)


def test_folders_of_others_are_refused(shm: Path) -> None:
    folder = shm / "n0"
    folder.mkdir(0o700)
    assert slot_inventory.places([folder]) == [folder]
    (shm / "link").symlink_to(folder)
    file = shm / "file"
    file.touch()
    for path, problem in (
        (shm / "link", "no folder"),
        (file, "no folder"),
        (shm / "no", "No such"),
    ):
        with pytest.raises(UsageError, match=problem):
            slot_inventory.places([path])
    folder.chmod(0o770)
    with pytest.raises(UsageError, match="others may write"):
        slot_inventory.places([folder])
    folder.chmod(0o700)
    with pytest.raises(UsageError, match="twice"):
        slot_inventory.places([folder, folder])
    if os.getuid() == 0:
        os.chown(folder, 65534, 65534)
        with pytest.raises(UsageError, match="not this user's"):
            slot_inventory.places([folder])


def test_a_picture_tells_who_holds_what(shm: Path) -> None:
    make(shm, [5000] * 4, 1, ring=range(4), ranks=RING)
    ground = make(
        shm, [5000] * 8, 1, ring=range(4), ranks=PAIRS, generation=2, state=ENCODED, lanes=2
    )
    folders = collect(ground)
    next(path for path in folders[1].iterdir() if path.name.endswith("-1-1.0")).unlink()
    for path in folders[3].iterdir():
        path.unlink()
    found = seen(*folders)
    picture = Availability("job", tuple(one.save for one in found if one.save), tuple("abcd"))
    assert str(picture).splitlines() == [
        "job: who holds what",
        "group  member  step 20              step 10",
        "0      0       a encoded            a committed",
        "0      1       1 b encoded, 1 lost  b committed",
        "0      2       c encoded            c committed",
        "0      3       lost                 lost",
        "               not restorable       restorable, 1 lost",
    ]
    picture.draw(shm / "who.svg")
    drawn = (shm / "who.svg").read_text()
    assert drawn.count("lost") >= 4
    assert ">0: a committed<" in drawn
    with pytest.raises(TopologyError, match="no picture"):
        picture.draw(shm / "who.gif")
    assert str(of_nodes("job", [], 3)) == "job: nothing is left"


def test_a_picture_of_many_shows_first_who_has_lost(shm: Path) -> None:
    ground = make(shm, [64] * 60, 2)
    save = ground.newest()
    lost = save.layouts[0].shares[57]
    some = replace(save, found={share: one for share, one in save.found.items() if share != lost})
    lines = str(of_nodes("job", saves([*some.found.values()]), 1)).splitlines()
    assert any(line.split()[:3] == ["0", "57", "lost"] for line in lines)
    assert lines[-2:][0] == "... (12 members left out)"
