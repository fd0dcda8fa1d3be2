"""Code that runs in a suite's own Python (3.8 or newer): one environment or many behind calls over a Unix socket.

It needs the standard library and msgspec, and takes NumPy, Gymnasium, gym and PettingZoo as the suite has them.
"""
