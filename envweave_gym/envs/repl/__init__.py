"""The environment REPL: a model answers a task about a long context with programs that may call other models."""
