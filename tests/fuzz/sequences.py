"""Sequences of calls: plain data, drawn from a seed, the same on every rank.

Caches go wrong at the second call of a kind, so most calls are an earlier one with a
single difference: another type of as many bytes, another root, in place, another form.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from closeranks.collectives import algorithms
from tests.fuzz.buffers import FORMS, OWNERS, SPREAD, VECTORS, WHOLE
from tests.fuzz.elements import C_NAMES, KINDS
from tests.fuzz.shapes import OPERATIONS, REDUCING, ROOTED, SIZED, Step

Sequence = dict[str, Any]

#: Most bytes of a message.
MOST = 4 << 20
_EDGES = (1 << 10, 4096, 8192, 16384, 32768, 65536, 1 << 18, 1 << 20, MOST)
#: Algorithms that one node has no levels for.
_LEVELLED = ("hierarchical", "leader")
#: Operations whose messages are one vector each.
_VECTORS = ("bcast", "reduce", "allreduce", "scan", "exscan")
#: Forms that say no type.
_UNTYPED = ("array", "number", "memoryview", "cube", "scalar", "fortran", "untyped")
#: What is neither waited for nor finished in its own step has slots of its own.
_LATE = ("late", "drop")
_WRONG = ("short", "room", "readonly", "root", "overlap", "order", "type")
#: Operations where all ranks meet an error of their own arguments.
_SYMMETRIC = ("allreduce", "allgather", "alltoall", "scan", "exscan")


def drawn(seed: int | str, number: int, ranks: int) -> Sequence:
    """Draw a sequence.

    Parameters
    ----------
    seed : int or str
        Of the run.
    number : int
        Of the sequence in the run.
    ranks : int
        How many will run it.
    """
    rng = random.Random(f"{seed}/{number}/{ranks}")
    steps: list[Step] = []
    for _ in range(rng.randint(10, 50)):
        steps.extend(_next(rng, steps, ranks))
    return {"ranks": ranks, "options": _options(rng), "steps": steps}


def _options(rng: random.Random) -> dict[str, Any]:
    """Draw what the communicator is opened with."""
    draw = rng.random()
    if draw < 0.5:
        return {}
    if draw < 0.55:
        return {"check": True}
    if draw < 0.60:
        return {"timeout_s": 100}
    if draw < 0.65:
        return {"deterministic": True}
    share = rng.choice([0.4, 0.9])  # of those that are settled from the start, in node memory
    rules = {op: [{"algorithm": _name(rng, op, share)}] for op in OPERATIONS if rng.random() < 0.8}
    return {"tuning": rules}


def _name(rng: random.Random, operation: str, share: float = 0.4) -> str:
    names = [name for name in algorithms(operation) if not name.startswith(_LEVELLED)]
    return (
        "shared" if "shared" in names and rng.random() < share else rng.choice(["native", *names])
    )


def _next(rng: random.Random, steps: list[Step], ranks: int) -> list[Step]:
    """Draw the next step: new, an earlier one with a difference, or another thing."""
    calls = [step for step in steps if step["do"] == "call"]
    draw = rng.random()
    if calls and draw < 0.72:
        step = _varied(rng, rng.choice(calls[-6:]), ranks)
    elif calls and draw < 0.78:
        step = _copy(rng.choice(calls))
        step["salt"] = rng.randrange(1000)
    elif calls and draw < 0.82:
        return [{"do": "finish", "how": rng.choice(["Waitall", "forward", "backward"])}]
    elif draw < 0.85:
        return [_wrong(rng, ranks)]
    elif draw < 0.855:
        return [_at_once(rng, ranks)]
    elif draw < 0.865:
        return [_interrupted(rng, ranks)]
    elif draw < 0.875:
        return [{"do": "free", "comm": rng.randint(1, 3)}]
    else:
        step = _new(rng, ranks)
    what = rng.choice(["window", "message"])
    step["need"] = [rng.randrange(ranks), what] if rng.random() < 0.05 else None
    return [_timed(rng, step, len(steps))]


def _copy(step: Step) -> Step:
    return {**step, "send": dict(step["send"]), "recv": dict(step["recv"])}


def _new(rng: random.Random, ranks: int) -> Step:
    """Draw a call."""
    operation = rng.choice(OPERATIONS)
    step: Step = {"do": "call", "op": operation, "comm": _comm(rng), "count": 0, "counts": [0]}
    step["mode"] = rng.choice(["", "", "", "", "I", "I", "_init"])
    step["root"], step["gap"] = rng.randrange(ranks), rng.choice([0, 0, 0, 1, 2])
    step["given"], step["named"] = rng.random() < 0.3, rng.random() < 0.2
    step["place"] = operation not in ("barrier", "bcast") and rng.random() < 0.25
    step["salt"], step["skew"], step["need"] = rng.randrange(1000), None, None
    step["vary"] = rng.random() < 0.1
    _typed(rng, step)
    _sized(rng, step, ranks)
    step["send"], step["recv"] = _side(rng, step, 0), _side(rng, step, 1)
    step["algorithm"] = _algorithm(rng, operation)
    return step


def _comm(rng: random.Random) -> int:
    """Draw a communicator: all ranks, a duplicate, two halves, backwards."""
    return rng.choice([0] * 12 + [1, 2, 3])


def _algorithm(rng: random.Random, operation: str) -> str:
    return "auto" if rng.random() < 0.55 else _name(rng, operation)


def _typed(rng: random.Random, step: Step) -> None:
    """Draw a type and a reduction."""
    names = [name for name, kind in KINDS.items() if kind.ops or step["op"] not in REDUCING]
    usual = ["i4", "f4", "i8", "f8", "u1"]
    step["kind"] = rng.choice(usual if rng.random() < 0.5 else names)
    _reduced(rng, step)


def _reduced(rng: random.Random, step: Step) -> None:
    if step["op"] not in REDUCING:
        step["reduce"] = None
        return
    ops = KINDS[step["kind"]].ops
    if step["op"] in ("scan", "exscan"):
        ops = tuple(op for op in ops if op != "cr.MEAN")
    usual = "MPI.SUM" in ops and rng.random() < 0.5
    step["reduce"] = "MPI.SUM" if usual else rng.choice(ops)


def _sized(rng: random.Random, step: Step, ranks: int) -> None:
    """Draw a size: mostly small, else around an edge, now and then long."""
    unit = KINDS[step["kind"]].nbytes
    draw = rng.random()
    if draw < 0.08:
        nbytes = rng.choice([0, unit])
    elif draw < 0.6:
        nbytes = rng.choice([1, 2, 3, 7, 16, 64, 100, 512]) * unit
    else:
        edges = _EDGES[:5] if draw < 0.88 else _EDGES
        nbytes = rng.choice(edges) // rng.choice([1, 1, 1, 2, 3])
        nbytes += rng.choice([-1, 0, 0, 1]) * unit
    blocks = 1 if step["op"] in _VECTORS else ranks
    if nbytes * blocks > MOST or rng.random() < 0.3:
        nbytes //= blocks
    step["count"] = max(0, nbytes // unit)
    few = max(1, step["count"])
    step["counts"] = [rng.choice([0, 1, few, few // 2, few]) for _ in range(max(2, ranks))]


def _side(rng: random.Random, step: Step, slot: int) -> dict[str, Any]:
    """Draw the memory and the form of one side."""
    side: dict[str, Any] = {
        "slot": 2 * rng.choice([0, 0, 0, 1]) + slot,
        "fresh": rng.random() < 0.1,
    }
    side["owner"] = rng.choice(OWNERS if rng.random() < 0.35 else ("numpy",))
    side["shift"] = rng.choice([0] * 8 + [KINDS[step["kind"]].nbytes, 1])
    side["form"] = rng.choice(["array", "typed", *FORMS])
    _fit(rng, step, side, is_vector=step["op"] in SIZED and _is_vector(step, slot))
    return side


def _is_vector(step: Step, slot: int) -> bool:
    """Tell whether a side has blocks of different sizes."""
    if step["op"] == "reduce_scatter":
        return False
    return bool(slot != (step["op"] == "scatterv")) or step["op"] == "alltoallv"


def _fit(rng: random.Random, step: Step, side: dict[str, Any], *, is_vector: bool) -> None:
    """Draw again what the type, or the operation, has no room for."""
    kind, name = KINDS[step["kind"]], step["kind"]
    forms = list(VECTORS if is_vector else FORMS)
    if not kind.plain:
        forms = [form for form in forms if form in ("typed", "counted", "listed", "shifted",
                 "four", "pair", "tuple", "numbers")]  # fmt: skip
    elif not kind.mpi:
        few = ("array", "cube", "scalar", "fortran", "untyped", *SPREAD)
        forms = [form for form in forms if form in few]
    elif name not in C_NAMES:
        forms = [form for form in forms if "memoryview" not in form]
    if side["shift"] % max(1, kind.dtype.alignment):  # mpi4py takes no array that is not aligned
        forms = [form for form in forms if form not in (*_UNTYPED, *SPREAD)] or forms
        side["shift"] = side["shift"] if kind.mpi else 0
    if kind.is_derived and "typed" in forms and not is_vector:
        forms.remove("typed")  # memory need not end where the last extent does
    if is_vector and step["gap"]:
        forms = [form for form in forms if form in ("pair", "tuple", "four", "numbers", "untyped",
                 "bytes", "strided")]  # fmt: skip
    if side["owner"] in WHOLE and (name not in C_NAMES or not kind.plain):
        side["owner"] = "numpy"
    if side["owner"] in WHOLE:
        side["shift"] = 0
        allowed = ("typed", "counted", "listed", "shifted", "four", "pair", "tuple", "numbers")
        more = () if side["owner"] == "bytearray" else ("array", "number", "untyped")
        forms = [form for form in forms if form in (*allowed, *more)]
    if side["form"] not in forms:
        side["form"] = rng.choice(forms)


def _timed(rng: random.Random, step: Step, number: int) -> Step:
    """Draw how often a call is made, and when it is waited for."""
    step["skew"] = [rng.randrange(4), rng.choice([1, 3, 10])] if rng.random() < 0.07 else None
    small = max(step["count"], *step["counts"]) * KINDS[step["kind"]].nbytes <= 1024
    step["repeat"] = rng.choice([1, 1, 2, 2, 3, *([5, 40] if small else [])])
    if small and step["mode"] == "" and step["algorithm"] == "auto" and rng.random() < 0.05:
        step["repeat"] = 400  # until the trial is over
    if step["mode"] == "I":
        step["wait"] = rng.choice(
            ["Wait", "wait", "test", "Waitall", "late", "late", "drop", "drop"]
        )
        if step["wait"] in _LATE:
            step["repeat"] = rng.choice([1, 1, 1, 20]) if step["wait"] == "drop" else 1
            for side in ("send", "recv"):
                step[side] |= {"slot": 100 + 2 * number + (side == "recv"), "fresh": False}
                if step[side]["owner"] == "shared":
                    step[side]["owner"] = "numpy"
    elif step["mode"] == "_init":
        step["wait"] = rng.choice(["Wait", "wait", "test", "Waitall"])
        step["close"] = rng.choice(["close", "Free", "drop"])
        step["repeat"] = rng.choice([1, 2, 3, 8])
    return step


def _wrong(rng: random.Random, ranks: int) -> Step:
    """Draw a call that every rank must refuse."""
    step = _new(rng, ranks)
    step["do"], step["wrong"] = "wrong", rng.choice(_WRONG)
    step["op"] = rng.choice(ROOTED if step["wrong"] == "root" else _SYMMETRIC)
    step["kind"], step["count"], step["gap"], step["place"] = "f8", rng.randint(2, 3000), 0, False
    step["mode"], step["vary"], step["counts"] = "", False, [rng.randint(1, 50)] * ranks
    for slot, side in enumerate(("send", "recv")):
        step[side] |= {"owner": "numpy", "form": "array", "shift": 0, "fresh": False}
        _fit(rng, step, step[side], is_vector=step["op"] in SIZED and _is_vector(step, slot))
    _reduced(rng, step)
    step["algorithm"] = "auto"
    return step


def _at_once(rng: random.Random, ranks: int) -> Step:
    """Draw calls of two threads, each on a communicator of its own."""
    calls = [[_alone(rng, ranks, thread) for _ in range(rng.randint(1, 6))] for thread in (1, 2)]
    return {"do": "threads", "calls": calls}


def _interrupted(rng: random.Random, ranks: int) -> Step:
    """Draw a call in which the handler of a signal raises on a rank."""
    step: Step = {"do": "signal", "rank": rng.randrange(ranks), "calls": [[_alone(rng, ranks, 3)]]}
    step["warm"] = rng.random() < 0.7  # made before, so that nothing is set up in it
    step["calls"][0][0]["repeat"] = 1  # who is interrupted makes no more of them
    return step | {"ms": rng.choice([0.05, 0.5, 3, 20]), "late": rng.choice([0, 1, 30, 30])}


def _alone(rng: random.Random, ranks: int, number: int) -> Step:
    """Draw a blocking call on a communicator, and in memory, that is used for it alone."""
    step = _new(rng, ranks)
    step |= {"mode": "", "comm": 10 + number, "repeat": rng.choice([1, 3, 10]), "vary": False}
    for slot, side in enumerate(("send", "recv")):
        step[side]["slot"] = 50 + 2 * number + slot
        if step[side]["owner"] == "shared":
            step[side]["owner"] = "numpy"
    return step


def _varied(rng: random.Random, earlier: Step, ranks: int) -> Step:
    """Draw an earlier call with one difference."""
    step = _copy(earlier)
    if max(step["send"]["slot"], step["recv"]["slot"]) >= 100:
        step["send"]["slot"], step["recv"]["slot"] = 0, 1
    step["salt"] = rng.randrange(1000)
    changes = [change for change, fits in _CHANGES if step["op"] in fits]
    rng.choice(changes)(rng, step, ranks)
    for slot, side in enumerate(("send", "recv")):
        vector = step["op"] in SIZED and _is_vector(step, slot)
        _fit(rng, step, step[side], is_vector=vector)
    most = MOST // KINDS[step["kind"]].nbytes // ranks
    step["count"] = min(step["count"], most)
    step["counts"] = [min(count, most) for count in step["counts"]]
    return step


def _other_type(rng: random.Random, step: Step, ranks: int) -> None:
    """Another type of as many bytes, and the same op if it has it."""
    nbytes = KINDS[step["kind"]].nbytes
    fits = [
        name
        for name, kind in KINDS.items()
        if kind.nbytes == nbytes and (kind.ops or step["op"] not in REDUCING)
    ]
    step["kind"] = rng.choice(fits)
    if step["reduce"] not in KINDS[step["kind"]].ops:
        _reduced(rng, step)


def _other_op(rng: random.Random, step: Step, ranks: int) -> None:
    _reduced(rng, step)


def _other_root(rng: random.Random, step: Step, ranks: int) -> None:
    step["root"] = rng.randrange(ranks)


def _other_place(rng: random.Random, step: Step, ranks: int) -> None:
    if step["op"] not in ("barrier", "bcast"):
        step["place"] = not step["place"]


def _other_side(rng: random.Random, step: Step, ranks: int) -> None:
    slot = rng.randrange(2)
    step[("send", "recv")[slot]] = _side(rng, step, slot)


def _other_memory(rng: random.Random, step: Step, ranks: int) -> None:
    rng.choice([step["send"], step["recv"]])["fresh"] = True


def _other_size(rng: random.Random, step: Step, ranks: int) -> None:
    step["count"] = max(0, step["count"] + rng.choice([-1, 1]))
    step["counts"] = step["counts"][1:] + step["counts"][:1]


def _other_comm(rng: random.Random, step: Step, ranks: int) -> None:
    step["comm"] = rng.randrange(4)


def _other_way(rng: random.Random, step: Step, ranks: int) -> None:
    step["algorithm"] = _algorithm(rng, step["op"])


def _other_mode(rng: random.Random, step: Step, ranks: int) -> None:
    step["mode"] = rng.choice(["", "I", "_init"])


def _other_operation(rng: random.Random, step: Step, ranks: int) -> None:
    """An operation of the same shape, with the same memory."""
    alike = REDUCING if step["op"] in REDUCING else [o for o in OPERATIONS if o not in REDUCING]
    step["op"] = rng.choice(alike)
    if step["op"] in ("barrier", "bcast"):
        step["place"] = False
    step["algorithm"] = _algorithm(rng, step["op"])
    if step["op"] in ("scan", "exscan") and step["reduce"] == "cr.MEAN":
        step["reduce"] = "MPI.SUM"


_CHANGES: tuple[tuple[Callable[[random.Random, Step, int], None], tuple[str, ...]], ...] = (
    (_other_type, OPERATIONS), (_other_type, REDUCING), (_other_type, REDUCING),
    (_other_op, REDUCING), (_other_root, ROOTED), (_other_root, ROOTED), (_other_root, ROOTED),
    (_other_place, OPERATIONS[2:]), (_other_place, REDUCING), (_other_side, OPERATIONS[1:]),
    (_other_memory, OPERATIONS[1:]), (_other_size, OPERATIONS[1:]), (_other_comm, OPERATIONS),
    (_other_way, OPERATIONS), (_other_mode, OPERATIONS), (_other_operation, OPERATIONS),
)  # fmt: skip
