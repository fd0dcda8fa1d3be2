"""Evaluates patches of SWE-bench instances: applies them in a workspace, runs the tests, grades the log."""
