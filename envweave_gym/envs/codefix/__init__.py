"""CodeFix: choose the operator that fixes a generated program."""
