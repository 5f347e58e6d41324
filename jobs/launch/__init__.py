"""Launch: a program on the ranks of a job, by the launcher that is here.

In reading order:

* ``run_command``: ``closeranks run``;
* ``job_description``: ranks, nodes and options of a job;
* ``mpi_library``, ``launcher_choice``: the MPI library of a Python, and the
  launcher that fits it;
* ``openmpi_mpirun``, ``mpich_mpiexec``, ``slurm_srun``: the command line of
  each launcher;
* ``launch``: the start of a job, and the wait for its end;
* ``exit_reports``: the end of a job, from reports of its ranks;
* ``program``: the program that the ranks run, and MPI for a verb;
* ``target``: files that a verb will write, checked before it starts;
* ``linux_namespaces``: the Linux calls behind a lab.
"""
