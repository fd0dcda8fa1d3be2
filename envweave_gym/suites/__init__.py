"""Suites: environments of other packages in virtual environments of their own, each stepped through a child process."""
