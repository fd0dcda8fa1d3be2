"""Runs a zygote that is inside namespaces from outside of them: ends it with its host, then removes its
folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from .kernel import end_with_parent
from .trees import remove_tree


def _become(user: int) -> None:
    """Change this child to the user, without groups."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def main() -> None:
    """Run the command in the arguments, whose last word is a descriptor of this process."""
    host, user, folder, *command = sys.argv[1:]
    control, wanted = int(command[-1]), int(user) or None
    become = None if wanted is None else lambda: _become(wanted)
    process = subprocess.Popen(command, pass_fds=[control], preexec_fn=become)
    os.close(control)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    end_with_parent(signal.SIGTERM, int(host))
    code = process.wait()
    remove_tree(folder)
    sys.exit(code if code >= 0 else 128 - code)
