"""Makes environments: in the server's process, or each in a process of its own that may crash alone.

Such processes are forked from a zygote that has imported everything; :mod:`envweave_gym.sandbox.forkserver`
starts it. ``plan`` is what the zygote gets, ``worker_process`` runs in each fork, and ``process_host`` is the
server's end.
"""
