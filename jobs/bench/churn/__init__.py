"""Churn: seats are killed, stopped and filled again, and a judge reads the sums.

A campaign is a series of episodes.  An episode is one job: members add their
bits step after step under a seeded `schedule` and write down what they got;
a `model` does the same without processes.  The `judge` reads the logs.
"""
