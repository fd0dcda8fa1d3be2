"""Sessions in processes of their own: a crash in one environment is that session's fault and nobody else's.

- ``zygote`` is a program of one thread that has imported everything and forks itself when it is told to;
- ``forkserver`` starts it, and hears how its children ended;
- ``worker`` is what a child does: own one environment and answer frames;
- ``host`` is a session's end of that: it asks the worker, and tells of its death as a fault.
"""
