"""Runs the fuzzer: ``python -m tests.fuzz --seed 1 --seconds 60 --ranks 3``."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.launch import ROOT, Outcome, launch
from tests.fuzz.program import written
from tests.fuzz.sequences import Sequence, drawn
from tests.fuzz.shrink import Shrinking

CORPUS = Path(__file__).resolve().parent / "corpus"
#: Seconds of one launch: state that gathers in a process is part of what is tried.
SPAN_S = 120.0


@dataclass
class Found:
    """What a run has found.

    Attributes
    ----------
    sequences : int
        How many were run.
    calls, refused : Counter
        By operation; by reason.
    failures : list of tuple
        Outcome and sequence of each.
    """

    sequences: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[Outcome, Sequence]] = field(default_factory=list)


def today() -> str:
    """Give the seed of a day."""
    return datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()


def run(
    seed: str,
    seconds: float,
    ranks: int,
    *,
    package: Path = ROOT,
    most: int = 1000,
    limit_s: float = 30,
) -> Found:
    """Run sequences for some time.

    Parameters
    ----------
    seed : str
        Any text.
    seconds : float
        How long; what has begun is finished.
    ranks : int
        How many.
    package : Path
        Where closeranks is imported from.
    most : int
        Failures after which it ends.
    limit_s : float
        Seconds that a step may take.
    """
    found, first = Found(), 0
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0 and len(found.failures) < most:
        span_s = min(left_s, SPAN_S)
        job = {"seed": seed, "first": first, "seconds": span_s, "limit_s": limit_s}
        outcome = launch(job, ranks, limit_s=span_s + 120, package=package)
        done = outcome.done
        found.sequences += done.get("sequences", outcome.index)
        found.calls.update(done.get("calls", {}))
        found.refused.update(done.get("refused", {}))
        if outcome.what:
            found.failures.append((outcome, drawn(seed, outcome.sequence, ranks)))
        first = outcome.sequence + 1
    return found


def report(found: Found, options: argparse.Namespace) -> str:
    """Write a summary as a section of Markdown."""
    kinds = Counter(outcome.what for outcome, _ in found.failures)
    lines = [
        f"## {options.ranks} ranks, {options.library}, {options.seconds:g} s",
        "",
        (
            f"`make fuzz SEED={options.seed} SECONDS={options.seconds:g} RANKS={options.ranks} "
            f"LIBRARY={options.library}`, on {today()}."
        ),
        "",
        (
            f"{found.sequences} sequences, {sum(found.calls.values())} calls compared: "
            f"{kinds['wrong'] + kinds['taken']} wrong, {kinds['hang']} hangs, "
            f"{kinds['raised']} unexpected errors, {kinds['died']} ends of a process."
        ),
        "",
        "| operation | calls |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in sorted(found.calls.items())),
        "",
    ]
    return "\n".join(lines)


def shrunk(outcome: Outcome, sequence: Sequence, options: argparse.Namespace) -> None:
    """Shrink a failure, print its program and keep it."""
    print(f"{outcome.what} in sequence {outcome.sequence}: {outcome.detail}\n", flush=True)
    shrinking = Shrinking(options.ranks, limit_s=options.shrink, package=options.package)
    if shrinking.first([sequence], tries=3) is None:
        before = [drawn(options.seed, outcome.sequence - back, options.ranks)
                  for back in range(min(outcome.index, 5), 0, -1)]  # fmt: skip
        joined = {**sequence, "steps": [s for one in [*before, sequence] for s in one["steps"]]}
        if shrinking.first([joined], tries=2) is None:
            print("it does not fail alone: run the same seed again")
            return
        sequence = joined
    best = shrinking.shrink(sequence)
    if Shrinking(options.ranks, package=options.package).first([best], tries=3) is None:
        print("the shortest one does not fail again: run the same seed again")
        return
    print(f"{shrinking.outcome.what}: {shrinking.outcome.detail}\n\n{written(best)}", flush=True)
    text = json.dumps(best, indent=1)
    name = f"{best['steps'][-1].get('op', 'end')}-{hashlib.sha1(text.encode()).hexdigest()[:8]}"
    (CORPUS / f"{name}.json").write_text(text + "\n")
    print(f"kept as {CORPUS.name}/{name}.json")


def main(arguments: list[str] | None = None) -> int:
    """Run, shrink what fails, write a summary; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", default=today(), help="default: the day")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--library", default="openmpi")
    parser.add_argument("--shrink", type=float, default=300, help="seconds for a failure; 0: none")
    parser.add_argument("--most", type=int, default=1000, help="failures after which it ends")
    parser.add_argument("--package", type=Path, default=ROOT, help="where closeranks lies")
    parser.add_argument("--summary", type=Path, help="file that takes a section")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, {options.ranks} ranks, {options.seconds:g} s", flush=True)
    found = run(
        options.seed, options.seconds, options.ranks, package=options.package, most=options.most
    )
    print(report(found, options), flush=True)
    for reason, count in found.refused.most_common(20):
        print(f"left out {count}: {reason}")
    for outcome, sequence in found.failures:
        if options.shrink:
            shrunk(outcome, sequence, options)
        else:
            print(f"{outcome.what} in sequence {outcome.sequence}: {outcome.detail}\n")
    if options.summary:
        _add(options.summary, report(found, options))
    return 1 if found.failures else 0


def _add(path: Path, section: str) -> None:
    """Put a section into a summary in the place of the one with its title."""
    title = section.splitlines()[0]
    parts = path.read_text().split("\n## ") if path.exists() else [_HEAD]
    kept = [part for part in parts[1:] if f"## {part.splitlines()[0]}" != title]
    text = "\n## ".join([parts[0].rstrip() + "\n", *kept, section.removeprefix("## ")])
    path.write_text(text.rstrip() + "\n")


_HEAD = "# Fuzzing\n"

if __name__ == "__main__":
    sys.exit(main())
