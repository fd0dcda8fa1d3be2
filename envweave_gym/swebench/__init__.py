"""Patches of SWE-bench instances, tried where their repositories run: applied, tested and graded."""
