"""The part of the sandbox that runs in its own processes: zygote and workers, and the supervisor of a zygote.

The zygote may run on another interpreter than the host process, so this code supports Python 3.6 and newer: newer
features are guarded by ``sys.version_info``, and generics that are evaluated at run time come from ``typing``. It
imports only the standard library, because every worker holds in memory all that is imported here.
"""

import sys

if sys.version_info < (3, 7):
    from . import strip_annotations

    sys.meta_path.insert(0, strip_annotations.Finder(__name__))
