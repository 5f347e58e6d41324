"""Churn: seats are killed, stopped and filled again, and a judge reads the sums.

* ``campaign``: a series of episodes, until its time is over;
* ``model``: an episode without processes: its schedule, and its right sums;
* ``member``: the program of one process of an episode;
* ``record``: the sums of a step, in files that outlive the process;
* ``judge``: the records of an episode, compared with the model.
"""
