"""The command line of Open MPI's ``mpirun`` (PRRTE, Open MPI 5)."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from closeranks.comms.shm.shared_folder import is_own_folder
from closeranks.jobs.launch.job_description import Command, Job

# Settings of the library, not of the launcher; the same under srun.
_YIELD = "mpi_yield_when_idle"
_SURVIVING = {
    "coll": "^han,cuda",
    "async_mpi_finalize": "1",
    "btl": "^sm,smcuda,ofi",
    "btl_tcp_flags": "send,inplace",
}
# A fragment of TCP with its header, in one packet of 64 KiB: the loopback takes no longer one,
# and a card takes no longer one apart.  As much is lost with a connection that breaks.
_FRAGMENT_BYTES = str(63 << 10)
_FRAGMENT_SETTINGS = ("btl_tcp_eager_limit", "btl_tcp_rndv_eager_limit", "btl_tcp_max_send_size")
_LOOPBACK = "127.0.0.0/8"
# Up to so many ranks an agreement goes by a star, not by a binary tree; 2 is the string there.
_STAR_RANKS = 128
_STAR = {"coll_ftagree_era_topology": "3"}
# For ranks that start others in the place of the dead.  PMIx 5.0.11 closes the socket of a
# rank that has died while it goes on listening to it (remove_client in psensor), and never
# hears the process that gets the number next.  PRRTE ends all that were started together
# when one dies, if they are not recoverable.
_STARTING = {
    "CLOSERANKS_RECRUITS": "1",
    "EVENT_NOEPOLL": "1",
    "PMIX_MCA_psensor": "^heartbeat,file",
    "PRTE_MCA_state_base_recoverable": "1",
}
# The folder of a launch.
_FOLDER = "closeranks-mpirun-"
# Names this machine, since it was started.
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# The ranks themselves may poll as they like.
_OWN_POLLING = ("/usr/bin/env", "-u", "EVENT_NOEPOLL")


def parameters(job: Job) -> dict[str, str]:
    """List the library parameters that a job needs beyond the defaults.

    If ranks cannot die, no collective settings are among them: the algorithm
    measured as ``native`` stays the library's own choice.  If ranks may die:

    * Two collective components are off: they crash (open-mpi/ompi#13915).
    * MPI_Finalize does not wait for dead ranks, as it sometimes would.
    * Messages inside a node go by TCP.  A rank may die while it appends to
      another rank's queue in shared memory, after it took the tail and before it
      linked it.  The other rank then never receives again.
    * TCP does without "puts".  The answer to a put that a death has broken off
      waits for a lock that its own thread holds.  A receive that waits for a put
      is polled for ever.
    * Agreements of small jobs use a star.  In a tree, a rank whose parent died
      asks its grandparent.  If the grandparent decides before it knows of the
      death, it replies only to the dead parent (`era_decide`), and the rank waits
      for ever.

    If the environment sets how TCP cuts its messages, that value stays.

    The libfabric transport (`btl ofi`) ends the process if a peer is gone
    (`mca_btl_ofi_exit`), so it is off if ranks may die.  On one machine it has no
    use, and closing it takes a second (a `sleep` in
    `mca_btl_ofi_component_close`): half of a job's start.

    Parameters
    ----------
    job : Job
        Ranks, and their places.

    Returns
    -------
    dict of str to str
        Names and values for ``--mca``.
    """
    chosen: dict[str, str] = dict(_SURVIVING) if job.faults else {}
    if job.faults and not any(f"OMPI_MCA_{name}" in os.environ for name in _FRAGMENT_SETTINGS):
        chosen |= dict.fromkeys(_FRAGMENT_SETTINGS, _FRAGMENT_BYTES)
    if job.faults and job.ranks <= _STAR_RANKS:
        chosen |= _STAR
    if job.crowded:
        chosen[_YIELD] = "1"
    if not job.fabric:
        chosen["osc"] = "^ucx"  # it complains aloud where UCX finds no device
    if job.reach is not None:
        chosen["btl"] = "tcp,self" if job.faults else "tcp,sm,self"
        chosen["btl_tcp_if_include"] = job.reach.network
    elif job.faults and job.here:
        chosen["btl_tcp_if_include"] = _LOOPBACK  # else a machine without a network has no way
    elif job.here and "OMPI_MCA_btl" not in os.environ:
        chosen["btl"] = "^ofi"
    return chosen


def command(path: str, job: Job, program: Sequence[str], environment: Mapping[str, str]) -> Command:
    """Write the command that starts a program on all ranks.

    Parameters
    ----------
    path : str
        The ``mpirun`` to use.
    job : Job
        Ranks, and their places; with `job.reach` the host file must exist (see
        `hostfile`).
    program : sequence of str
        Program and arguments.
    environment : mapping of str to str
        Variables every rank gets.

    Returns
    -------
    Command
        Words and environment.
    """
    words = [path]
    if job.root:
        words.append("--allow-run-as-root")
    if job.faults:
        words += ["--with-ft", "ulfm"]
    words += ["-n", str(job.ranks), *_placement(job), *_reach(job)]
    for name, value in parameters(job).items():
        words += ["--mca", name, value]
    for name in sorted({*job.exported, *environment}):
        if not name.startswith("OMPI_MCA_"):  # forwarded by mpirun itself
            words += ["-x", name]
    prefix = job.reach.prefix if job.reach else ()
    if not (job.faults and job.here):  # daemons of PRRTE 3.0 crash where others start some
        return Command((*words, *prefix, *program), dict(environment))
    return Command((*words, *_OWN_POLLING, *program), {**environment, **_STARTING})


@contextmanager
def session() -> Iterator[dict[str, str]]:
    """Lend ``mpirun`` a folder of its own for as long as it runs.

    It names its files by its process id alone, and never removes the files of
    a run that was killed.  If it finds some under its own id, it starts no
    job: "The PMIx server's listener thread failed to start".  Folders of those
    that were killed before they could remove them are removed here.

    Yields
    ------
    dict of str to str
        Variables for `mpirun`; the folder is removed at the end, and what is
        left in it.
    """
    with (
        tempfile.TemporaryDirectory(prefix=_FOLDER, ignore_cleanup_errors=True) as own,
        Path(own, ".new").open("wb") as lock,
    ):
        with suppress(OSError):  # without locks nobody else removes it, or we theirs
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            name = f"owner-{_BOOT.read_text().strip()}"  # locks may mean nothing elsewhere
            Path(lock.name).rename(Path(own, name))  # who finds it finds it locked
            _tidy(name)
        yield {"PRTE_MCA_prte_local_tmpdir_base": own}


def _tidy(name: str) -> None:
    """Remove our folders that killed processes of this machine have left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with suppress(OSError):  # another one does, or its owner is alive
            if is_own_folder(folder, _FOLDER):
                with Path(folder, name).open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)  # goes through no link


def hostfile(job: Job) -> str:
    """Write the host file that places every rank.

    Parameters
    ----------
    job : Job
        A job with named hosts.

    Returns
    -------
    str
        One host and its slots a line.
    """
    return "".join(f"{host.name} slots={host.slots}\n" for host in job.hosts)


def _placement(job: Job) -> list[str]:
    """Say where ranks go and whether they are bound to cores."""
    words: list[str] = []
    if job.hosts and job.reach is None:
        words += ["--host", ",".join(f"{host.name}:{host.slots}" for host in job.hosts)]
    policy = "node" if job.order == "round-robin" else "slot" if job.hosts else ""
    full = job.crowded or job.paired  # the launcher counts cores, not their threads
    if full and not job.hosts:
        policy += ":OVERSUBSCRIBE"
    if policy:
        words += ["--map-by", policy]
    if full or job.reach is not None:  # nodes of a lab share their cores
        words += ["--bind-to", "none"]
    return words


def _reach(job: Job) -> list[str]:
    """Say how to reach the nodes of a lab.

    Its daemons stay in one session: Linux schedules the sessions of a machine
    against each other, and a node's ranks would starve behind another's.
    """
    if job.reach is None:
        return []
    return [
        *("--hostfile", job.reach.hostfile),
        *("--prtemca", "plm_ssh_agent", job.reach.agent),
        *("--prtemca", "plm_ssh_no_tree_spawn", "1"),  # only the head reaches every node
        "--leave-session-attached",
        *("--prtemca", "prte_if_include", job.reach.launcher_network),
    ]
