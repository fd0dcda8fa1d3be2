"""Environments whose actions are programs: CodeAct and Coding."""
