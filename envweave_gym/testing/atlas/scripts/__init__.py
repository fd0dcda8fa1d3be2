"""Source text of the atlas's scripts: ``script_composition.py`` puts a rule and the functions it needs together.

The programs run in the Python of a suite, from 3.8 on, with the standard library, NumPy and the suite alone. No other
module imports these; they import each other for readers and type checkers.
"""
