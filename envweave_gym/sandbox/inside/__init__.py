"""What runs in processes of their own, with nothing but the standard library.

The zygote may be started by another interpreter than the one of its host, and what is imported here is what
every worker has in memory. So nothing here imports the package around it.
"""
