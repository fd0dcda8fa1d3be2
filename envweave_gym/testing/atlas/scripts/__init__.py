"""Source text of the atlas's scripts: :mod:`..composition` puts a rule and the functions it needs into one program.

The programs run in the Python of a suite, from 3.8 on, with the standard library, NumPy and the suite alone. No
module of ours imports these modules; they import each other for readers and type checkers.
"""
