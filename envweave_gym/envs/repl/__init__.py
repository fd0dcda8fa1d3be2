"""REPL: a model works on a long context with programs and calls of other models."""
