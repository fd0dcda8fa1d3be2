"""Environments in the server's process, or each in a worker process that may crash alone.

Workers are forked from a zygote, a process that has imported everything; :mod:`envweave_gym.sandbox.forkserver`
starts it. ``worker_setup`` is the setup that the zygote gets, ``worker_process`` runs in each fork, and
``worker_hosts`` is the server's end.
"""
