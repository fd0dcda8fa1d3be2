"""The atlas: which IDs of a suite keep the promises of Gymnasium's and PettingZoo's APIs, as a table with findings.

Each rule is a short script that runs in the suite's own Python, in a process of its own with a deadline. A finding is
a script that failed; reduced to few moves and run once more in a fresh interpreter it is its own reproduction.
"""
