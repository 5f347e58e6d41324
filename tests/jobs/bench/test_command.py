"""The command line of the bench: its help and every refusal, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from closeranks.errors import UsageError
from closeranks.jobs.bench.command import bench

NAMES = (
    "barrier bcast reduce allreduce reduce_scatter_block reduce_scatter allgather "
    "allgatherv gather gatherv scatter scatterv alltoall alltoallv scan exscan "
    "pingpong bandwidth bibandwidth pairs matrix steps pack overlap init faults churn "
    "erasure checkpoint snapshot varied redistribute halo coded sparse route chunks all"
)
HELP = """\
Usage: closeranks bench [OPTIONS] NAME...

  Measure collectives and point-to-point messages.

  Run it under closeranks run, closeranks lab, mpirun or srun.  Size, times and
  bandwidths are those of nccl-tests; exit status 1 if a result is wrong.

Options:
  --sizes TEXT                8:64M, 8:64M:4 or 1K,64K,1000; default 8:4M, for
                              matrix 1M, for overlap 64K:16M:4, for erasure
                              64K,64M, for checkpoint and snapshot 64M, for
                              redistribute 1M:64M:8, for halo and sparse 16M,
                              for route 2K, for chunks 256K.
  --algorithms TEXT           Names, comma-separated.  [default: auto]
  --dtype TEXT                Type of the elements.  [default: float32]
  --op TEXT                   Reduction.  [default: sum]
  --check / --no-check        Validate results.  [default: check]
  --iterations INTEGER RANGE  Calls a side instead of the budget.  [x>=1]
  --warmup INTEGER RANGE      Calls before the time counts.  [x>=0]
  --budget FLOAT RANGE        Seconds a size may take, least counts apart.
                              [default: 3.0; x>0]
  --vs TEXT                   Compare with native, best, copy or plain;
                              native,best for both.
  --of TEXT                   Collectives that overlap starts, comma-separated.
                              [default: allreduce]
  --kinds TEXT                What happens to ranks in faults, in turn.
                              [default: kill,stop]
  --recruits INTEGER RANGE    Ranks that faults replaces by new processes.
                              [x>=0]
  --minutes FLOAT RANGE       How long churn goes on.  [default: 1.0; x>0]
  --members INTEGER RANGE     Ranks that work in churn.  [default: 6; 2<=x<=63]
  --spares INTEGER RANGE      Ranks that wait in churn.  [default: 6; x>=0]
  --seed INTEGER              Of churn's first schedule, and of the calls of
                              varied.  [default: 0]
  --data TEXT                 Data blocks of erasure.  [default: 4,8]
  --parity TEXT               Parity blocks of erasure, default 2,3, and of
                              checkpoint, 1.
  --patterns TEXT             Calls of varied, comma-separated: sizes, never,
                              cyclic, kinds, comms, fresh, odd, step; default
                              all.
  --real                      Run rounds of coded; default.
  --simulate [paper]          Compute rounds of coded instead: the comparison of
                              the paper.
  --rounds INTEGER RANGE      Rounds of coded.  [default: 40; 1<=x<=100000]
  --slowdown FLOAT RANGE      How much slower a slow rank of coded is.
                              [default: 8.0; 1<=x<=1000]
  --floats INTEGER RANGE      Elements of a gradient of coded.  [default: 16384;
                              64<=x<=268435456]
  --record FILE               Record the uncoded rounds of coded, for closeranks
                              stragglers.
  --density TEXT              Shares of the entries that sparse stores.
                              [default: 0.0001,0.001,0.01,0.1]
  --nnz INTEGER RANGE         Entries that sparse stores, instead of shares.
                              [x>=0]
  --topk TEXT                 Also topk_allreduce, with these shares of the
                              entries of sparse as k.
  --tokens INTEGER RANGE      Rows that route sends from each rank.  [default:
                              2048; 1<=x<=16777216]
  --experts INTEGER RANGE     Experts of route, on all ranks in turn.  [default:
                              64; 1<=x<=65536]
  --choices INTEGER RANGE     Experts of a row of route.  [default: 8;
                              1<=x<=1024]
  --empty                     Buffers of comm.empty, which a node's ranks share.
  --persistent                Start persistent operations, and wait.
  --counters                  Read what the NICs sent.
  --format TEXT               table, osu or nccl.  [default: table]
  --json PATH                 Write rows here.
  --draw PATH                 Draw a chart here.
  --help                      Show this message and exit.

  NAMEs: barrier bcast reduce allreduce reduce_scatter_block reduce_scatter
  allgather allgatherv gather gatherv scatter scatterv alltoall alltoallv scan
  exscan pingpong bandwidth bibandwidth pairs matrix steps pack overlap init
  faults churn erasure checkpoint snapshot varied redistribute halo coded sparse
  route chunks all
"""
SIZES = "write 8:64M (powers of two), 8:64M:4 (a factor) or 1K,64K,1000 (a list)"
REFUSED = {
    "allredcue": f"bench: unknown benchmark 'allredcue'; choose from: {NAMES}",
    "allreduce --sizes 1:2:1": f"bench --sizes: factor '1' is not at least 2; {SIZES}",
    "allreduce --sizes x": f"bench --sizes: 'x' is not a number of bytes; {SIZES}",
    "allreduce --vs best": (
        "bench --vs best: the library reads its settings when it starts, so best needs "
        "several launches; start it with: closeranks run -n N -- closeranks bench ..."
    ),
    "allreduce --format xml": "bench --format: unknown 'xml'; choose table, osu, nccl",
    "allreduce --json nowhere/x.json": (
        "bench: no folder for nowhere/x.json; make it, or choose another"
    ),
    "allreduce --draw nowhere/x.svg": (
        "bench: no folder for nowhere/x.svg; make it, or choose another"
    ),
    "allreduce --draw x.xyz": (
        "bench --draw: x.xyz has no known suffix; end it with .svg, .png, .pdf"
    ),
    "allreduce --dtype float8": (
        "bench --dtype: unknown type 'float8'; choose int8, int16, int32, int64, uint8, "
        "uint16, uint32, uint64, float16, bfloat16, float32, float64, complex64, "
        "complex128"
    ),
    "allreduce --op add": (
        "bench --op: unknown operation 'add'; choose sum, prod, min, max, mean, band, "
        "bor, bxor, land, lor, lxor"
    ),
    "allreduce --op band": (
        "bench --op: band of float32 does not exist; choose int8, int16, int32, int64, "
        "uint8, uint16, uint32, uint64"
    ),
    "pingpong --empty": "bench --empty: only collectives have such buffers; leave it out",
    "pingpong --persistent": "bench --persistent: only collectives are persistent; leave it out",
    "allreduce --vs plain": (
        "bench --vs plain: the library's blocking call is what native is; use --vs "
        "native, or add --persistent"
    ),
    "pingpong --vs plain": (
        "bench --vs plain: the library's blocking call is what native is; use --vs "
        "native, or add --persistent"
    ),
    "allreduce --vs copies": "bench --vs: unknown copies; choose native or best or copy or plain",
    "allreduce --vs copies,more": (
        "bench --vs: unknown copies, more; choose native or best or copy or plain"
    ),
    "pingpong --vs native": "bench --vs: point-to-point has nothing to compare; leave out --vs",
    "pingpong --vs copy": "bench --vs: point-to-point has nothing to compare; leave out --vs",
    "pingpong --vs best": "bench --vs: point-to-point has nothing to compare; leave out --vs",
    "scan --op mean": "bench --op: a scan has no mean; name other operations, or --op sum",
    "exscan --op mean": "bench --op: a scan has no mean; name other operations, or --op sum",
    "overlap scan --op mean": "bench --op: a scan has no mean; name other operations, or --op sum",
    "overlap --of pingpong": (
        "bench --of: not all collectives: pingpong; as in --of allreduce,bcast"
    ),
    "overlap --of foo": f"bench: unknown benchmark 'foo'; choose from: {NAMES}",
    "overlap --of bcast,bcast": (
        "bench --of: not all collectives: bcast,bcast; as in --of allreduce,bcast"
    ),
    "allreduce --of pingpong": (
        "bench --of: not all collectives: pingpong; as in --of allreduce,bcast"
    ),
    "allreduce --of foo": f"bench: unknown benchmark 'foo'; choose from: {NAMES}",
    "overlap --vs native": "bench --vs: point-to-point has nothing to compare; leave out --vs",
    "overlap --empty": "bench --empty: only collectives have such buffers; leave it out",
    "erasure --data four": "bench --data: 'four' is no list of numbers; write 4,8",
    "erasure --data 300": (
        "code: 300 data and 2 parity blocks; take at least one of each, at most 255 "
        "together"
    ),
    "erasure --parity x": "bench --parity: 'x' is no list of numbers; write 4,8",
    "allreduce --parity x": "bench --parity: 'x' is no list of numbers; write 4,8",
    "allreduce --parity 0": "bench --parity: '0' is no list of numbers; write 4,8",
    "checkpoint --parity 1,,2": "bench --parity: '1,,2' is no list of numbers; write 4,8",
    "erasure allreduce": "bench erasure: no ranks; name it alone, without --draw",
    "erasure --draw x.svg": "bench erasure: no ranks; name it alone, without --draw",
    "faults allreduce": "bench faults: ranks are lost; name it alone, without --draw",
    "faults --draw x.svg": "bench faults: ranks are lost; name it alone, without --draw",
    "churn --draw x.svg": "bench churn: ranks are lost; name it alone, without --draw",
    "churn pack": "bench churn: ranks are lost; name it alone, without --draw",
    "faults erasure": "bench faults: ranks are lost; name it alone, without --draw",
    "churn erasure": "bench churn: ranks are lost; name it alone, without --draw",
    "faults --dtype float64 --iterations 3": (
        "bench faults: no meaning for --dtype, --iterations; leave that out"
    ),
    "faults --kinds foo": "bench --kinds: unknown foo; choose kill or stop",
    "faults --kinds kill,foo": "bench --kinds: unknown foo; choose kill or stop",
    "churn --sizes 4K --no-check": (
        "bench churn: no meaning for --sizes, --check/--no-check; leave that out"
    ),
    "churn --kinds kill": "bench churn: no meaning for --kinds; leave that out",
    "erasure --op max --sizes 4K": "bench erasure: no meaning for --op; leave that out",
    "erasure --sizes 1:2:1": f"bench --sizes: factor '1' is not at least 2; {SIZES}",
    "churn --members 2 --spares 0": (
        "bench churn: 2 members and 0 spares: nobody may be lost; --members 3, or "
        "--spares 1"
    ),
    "": f"bench: no benchmark named; choose from: {NAMES}",
    "faults --json nowhere/x.json": (
        "bench: no folder for nowhere/x.json; make it, or choose another"
    ),
    "churn --json nowhere/x.json": (
        "bench: no folder for nowhere/x.json; make it, or choose another"
    ),
    "erasure --json nowhere/x.json": (
        "bench: no folder for nowhere/x.json; make it, or choose another"
    ),
    "scan --op mean --vs plain": (
        "bench --vs plain: the library's blocking call is what native is; use --vs "
        "native, or add --persistent"
    ),
    "scan faults --op mean": "bench faults: ranks are lost; name it alone, without --draw",
    "faults allreduce --vs plain": "bench faults: ranks are lost; name it alone, without --draw",
    "pingpong --persistent --empty": (
        "bench --empty: only collectives have such buffers; leave it out"
    ),
    "snapshot --vs native": "bench --vs: point-to-point has nothing to compare; leave out --vs",
    "steps --empty": "bench --empty: only collectives have such buffers; leave it out",
    "pack --persistent": "bench --persistent: only collectives are persistent; leave it out",
    "init --vs copy": "bench --vs: point-to-point has nothing to compare; leave out --vs",
    "varied --patterns size": (
        "bench --patterns: unknown size; choose sizes, never, cyclic, kinds, comms, fresh, "
        "odd, step"
    ),
    "varied --vs native": "bench --vs: point-to-point has nothing to compare; leave out --vs",
    "sparse --density 2": (
        "bench sparse: --density 2; give numbers above 0, at most 1, with commas"
    ),
    "sparse --topk 0": "bench sparse: --topk 0; give numbers above 0, at most 1, with commas",
    "sparse --topk 0.01 --dtype int32": (
        "bench sparse: --topk of int32; one of float16, bfloat16, float32, float64"
    ),
    "sparse --algorithms flat": (
        "bench sparse: no algorithm flat; one of auto, doubling, split, dense"
    ),
    "route --algorithms split": "bench route: no algorithm split; one of auto, flat, two_hops",
    "chunks --algorithms split": "bench chunks: no algorithm split; one of auto, flat, two_hops",
    "route --choices 9 --experts 8": (
        "bench route: --choices 9 of 8 experts; choose at most as many as there are"
    ),
    "matrix --vs best": "bench --vs: point-to-point has nothing to compare; leave out --vs",
}  # fmt: skip


def test_the_help_says_what_there_is() -> None:
    done = CliRunner().invoke(bench, ["--help"], terminal_width=80, prog_name="closeranks bench")
    assert done.output == HELP


@pytest.mark.parametrize("words", REFUSED)
def test_a_refusal_says_what_is_wrong(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOSERANKS_BEST_DIR", raising=False)
    done = CliRunner().invoke(bench, words.split())
    assert isinstance(done.exception, UsageError), done.output
    assert str(done.exception) == REFUSED[words]
    assert done.output == ""


@pytest.mark.parametrize("words", ["churn", "churn --persistent"])
def test_churn_is_no_job_in_a_job(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    done = CliRunner().invoke(bench, words.split())
    assert str(done.exception) == ("bench churn: called inside an MPI job; it starts jobs itself")
