"""The supervisor of a zygote in namespaces: it runs outside of them, and ends the zygote with its host process.

Afterwards it removes the scratch folder, which the zygote cannot do from inside.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from .kernel import end_with_parent
from .remove_tree import remove_tree


def _become(user: int) -> None:
    """Change this process to the user and the group of the same number, without further groups."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def main() -> None:
    """Run a zygote until it or the host process ends, remove the scratch folder, and exit with the zygote's code.

    The arguments are the host process's PID, the zygote's UID (0: stay the same user), the scratch folder, and the
    zygote's command. Its last word is the number of the control socket's descriptor, which the zygote inherits.
    """
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
