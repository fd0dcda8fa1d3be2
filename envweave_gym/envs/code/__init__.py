"""Environments whose actions are Python programs.

CodeAct has a task, tools and a final answer. Coding has no task: it shows the output and the exit code of programs.
"""
