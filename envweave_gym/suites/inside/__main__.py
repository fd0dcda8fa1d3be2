"""Program of a suite's process: answers calls over the socket that is its standard input.

It is run by path in the suite's Python. Standard input becomes empty, and standard output goes to standard error,
so that neither prints nor reads of the suite reach the connection.
"""

import importlib.util
import os
import socket
import sys

_NAME = "envweave_suite_process"
"""Name of this folder's modules here: its own could be those of a package of the suite."""


def main() -> None:
    """Take the connection and serve it."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in sys.path if os.path.abspath(one) != folder]
    connected = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=connected.close)
    spec = importlib.util.spec_from_file_location(
        _NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = package
    spec.loader.exec_module(package)
    calls = importlib.import_module(_NAME + ".calls")
    framing = importlib.import_module(_NAME + ".framing")
    sys.argv = [""]
    calls.serve(framing.Channel(connected))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of the suite must not keep the process; the environments are closed


if __name__ == "__main__":
    main()
