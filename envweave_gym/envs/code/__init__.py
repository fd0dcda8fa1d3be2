"""Environments whose actions are Python programs: CodeAct and Coding."""
