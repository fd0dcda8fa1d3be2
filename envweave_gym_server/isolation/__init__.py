"""Sessions in processes of their own: a crash in one environment is that session's fault and nobody else's.

They are forked from a zygote that has imported everything, which :mod:`envweave_gym.sandbox.forkserver`
starts.

- ``plan`` is what that is told;
- ``worker`` is what a child does: own one environment and answer frames;
- ``host`` is a session's end of that: it asks the worker, and tells of its death as a fault;
- ``channel`` is how both speak.
"""
