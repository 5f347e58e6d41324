"""Writes a sequence as a program that stands alone."""

from __future__ import annotations

from tests.fuzz.buffers import SPREAD, WHOLE, Part, rendered
from tests.fuzz.elements import C_NAMES, KINDS, LETTERS
from tests.fuzz.reductions import FUNCTIONS
from tests.fuzz.sequences import Sequence
from tests.fuzz.shapes import IN_PLACE, REDUCING, Step, arguments, method_of, shapes

_HEAD = '''\
# closeranks run -n {ranks} -- PROGRAM
import array, ctypes, faulthandler, gc
import ml_dtypes, numpy as np
from mpi4py import MPI
import closeranks as cr

faulthandler.dump_traceback_later(30, exit=True)
comm, plain = cr.init(**{options!r}), MPI.COMM_WORLD.Dup()
r = comm.rank
kept = {{}}


def room(slot, nbytes, fresh=False):
    """Memory that later calls use again."""
    if fresh or len(kept.get(slot, b"")) < nbytes:
        kept.pop(slot, None)
        kept[slot] = np.empty(nbytes, "u1")
    return kept[slot][:nbytes]


def put(a, salt):
    """Small numbers that tell ranks and calls apart."""
    flat = np.frombuffer(a, "u1") if not isinstance(a, np.ndarray) else a
    flat[...] = (np.arange(flat.size).reshape(flat.shape) * 3 + r * 7 + salt) % 11


def show(what, ours, theirs):
    same = np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
    print(r, what, "right" if same else f"WRONG {{np.asarray(ours).ravel()[:5]}} "
          f"for {{np.asarray(theirs).ravel()[:5]}}", flush=True)
'''
_OWN = {
    "XOR": "def XOR(a, b, t): x = np.frombuffer(b, 'u1'); x ^= np.frombuffer(a, 'u1')",
    "LEFT": "def LEFT(a, b, t): b[:] = a",
    "RIGHT": "def RIGHT(a, b, t): pass",
    "ADD": "def ADD(a, b, t): x, y = np.frombuffer(a, t.typechar), np.frombuffer(b, t.typechar); "
    "y += x + x * y",
    "AFFINE": "def AFFINE(a, b, t): x, y = np.frombuffer(a, 'u8'), np.frombuffer(b, 'u8'); "
    "M, H = np.uint64(2**32 - 1), np.uint64(32); m = y & M; "
    "y[:] = ((x & M) * m & M) | (((x >> H) * m + (y >> H) & M) << H)",
}
_COMMS = {1: "Dup()", 2: "Split(r % 2, r)", 3: "Split(0, -r)"}


def written(sequence: Sequence) -> str:
    """Give the text of a program that makes the same calls.

    Parameters
    ----------
    sequence : dict
        See `tests.fuzz.sequences`.

    Returns
    -------
    str
        A program for as many ranks; its numbers are others, guards and other types of memory
        are left out.
    """
    lines = [_HEAD.format(ranks=sequence["ranks"], options=sequence["options"])]
    steps = sequence["steps"]
    for name in sorted({step.get("reduce") for step in steps} & set(FUNCTIONS), key=str):
        lines += [_OWN[name], f"{name} = MPI.Op.Create({name}, {FUNCTIONS[name][1]})"]
    for number in sorted({step.get("comm", 0) for step in steps} - {0}):
        make = _COMMS.get(number, "Dup()")
        lines.append(f"comm{number}, plain{number} = comm.{make}, plain.{make}")
    lines.append("late = []")
    for number, step in enumerate(steps):
        lines += ["", f"# {number}: {step['do']} {step.get('op', '')} {step.get('wrong', '')}"]
        if step.get("need"):
            lines.append("# before it all others need rank {}'s {}".format(*step["need"]))
        lines += _step(step, sequence["ranks"])
    return "\n".join([*lines, "comm.close()"])


def _step(step: Step, ranks: int) -> list[str]:
    if step["do"] == "finish":
        return ["MPI.Request.Waitall([q for q, *_ in late])",
                "for _, *said in late: show(*said)", "late.clear()"]  # fmt: skip
    if "op" not in step or step["do"] not in ("call", "wrong"):
        return [f"# {step}"]
    tail = str(step["comm"] or "")
    size = ranks if step["comm"] != 2 else (ranks + 1) // 2
    table = [shapes(step, rank, size) for rank in range(size)]
    lines = [f"p = plain{tail}.rank"]
    for name, slot in (("send", 0), ("recv", 1)):
        lines += _side(step, name, [row[slot] for row in table])
    return [*lines, *_served(step, tail, size)]


def _side(step: Step, name: str, parts: list[object]) -> list[str]:
    """Write the memory of a side, and its message, for each rank."""
    given, kind = step[name], KINDS[step["kind"]]
    entries = [part.entries if isinstance(part, Part) else 0 for part in parts]
    letter = "x" if name == "send" else "y"
    count = f"{entries}[p]" if len(set(entries)) > 1 else str(entries[0])
    spread, view = SPREAD.get(given["form"], (1, "{m}.view({k})"))
    dtype = repr(kind.dtype.str) if kind.mpi or kind.dtype.kind != "V" else "ml_dtypes.bfloat16"
    if kind.dtype.names:
        dtype = "'u1'"
    memory = f"room({given['slot']}, {count} * {kind.nbytes * spread}, {given.get('fresh')})"
    text = view.format(m=memory, k=dtype)
    if given["owner"] in WHOLE:
        text = {
            "array.array": f"array.array({LETTERS[step['kind']]!r}, "
            f"bytes({count} * {kind.nbytes}))",
            "ctypes": f"(ctypes.{C_NAMES[step['kind']]} * {count})()",
            "bytearray": f"bytearray({count} * {kind.nbytes})",
        }[given["owner"]]
    lines = [f"{letter} = {text}"]
    if given["owner"] == "shared":
        lines = [f"{letter} = comm.empty({max(entries)}, {dtype})[:{count}]"]
    for variable, copied in ((letter, False), (letter * 2, True)):
        if copied:
            lines.append(f"{variable} = {letter}[:] if isinstance({letter}, (bytearray, "
                         f"array.array)) else np.array({letter}, copy=True)")  # fmt: skip
        said = [_message(part, given["form"], step, variable) for part in parts]
        lines.append(f"{variable}m = " + _by_rank(said))
    return lines


def _message(part: object, form: str, step: Step, a: str) -> str:
    if part == IN_PLACE:
        return "MPI.IN_PLACE"
    if not isinstance(part, Part):
        return "None"
    return rendered(form, part, KINDS[step["kind"]], a)


def _by_rank(said: list[str]) -> str:
    if len(set(said)) == 1:
        return said[0]
    return "(" + ", ".join(f"lambda: {one}" for one in said) + ")[p]()"


class _Name(str):
    """Stands in a list of arguments as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _served(step: Step, tail: str, size: int) -> list[str]:
    """Write both calls, and what compares them."""
    op = _Name(step["reduce"] or "None")

    def call(sent: str, taken: str, more: str = "") -> str:
        given, named = arguments(step, size, _Name(sent), _Name(taken), op)
        said = [repr(one) for one in given] + [f"{key}={one!r}" for key, one in named.items()]
        return "(" + ", ".join([*said, *([more] if more else [])]) + ")"

    way = "" if step["algorithm"] == "auto" else f"algorithm={step['algorithm']!r}"
    ours = f"comm{tail}.{method_of(step)}{call('xm', 'ym', way)}"
    if step["do"] == "wrong":
        return [f"# {step['wrong']}: make the arguments so", f"{ours}"]
    theirs = f"plain{tail}.{step['op'].capitalize()}{call('xxm', 'yym')}"
    mean = step["reduce"] == "cr.MEAN" or (step["op"] in REDUCING and not KINDS[step["kind"]].mpi)
    lines = [f"for turn in range({step['repeat']}):"]
    memory = "x, xx, y, yy" if step["op"] != "barrier" else ""
    lines.append(f"    for a in ({memory}): put(a, {step['salt']} + turn)")
    if step["mode"] == "_init":
        lines.insert(0, f"op = {ours}")
        ours = "op.start(); op.wait()"
    elif step["mode"] == "I" and step["wait"] not in ("late", "drop"):
        ours = f"{ours}.Wait()"
    if step["mode"] == "I" and step["wait"] == "late":
        return [*lines, f"    {theirs}", f"    late.append(({ours}, 'late', y, yy))"]
    if mean:
        return [*lines, f"    {ours}", "    print(r, y[:5], flush=True)  # nothing to compare with"]
    return [*lines, f"    {theirs}", f"    {ours}",
            f"    show(f\"{step['op']} {{turn}}\", y, yy)"]  # fmt: skip
