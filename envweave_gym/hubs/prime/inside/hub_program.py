"""Program that plays the episodes of one hub package: the library evaluates one task at a time.

It is run by path in the package's virtual environment, where this package is not installed. Its argument is the
descriptor of a socket to its owner (``episode_server.py``).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

_HERE = Path(__file__).parent
_NAME = "_envweave_hub"
"""Name of this folder's modules here: its own could be those of a hub package."""


def main() -> None:
    """Serve the owner of the socket until it closes it."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    sys.argv[1:] = []
    # The folder of this file was put first in the path; modules of packages must not be hidden by those here.
    sys.path[:] = [one for one in sys.path if one != str(_HERE)]
    spec = importlib.util.spec_from_file_location(
        _NAME, _HERE / "__init__.py", submodule_search_locations=[str(_HERE)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = package
    spec.loader.exec_module(package)
    server = importlib.import_module(f"{_NAME}.episode_server")
    with suppress(asyncio.CancelledError):
        asyncio.run(server.serve(connection))


if __name__ == "__main__":
    main()
