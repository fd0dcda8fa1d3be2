"""The part of the sandbox that runs in its own processes, on the standard library alone.

The zygote may run on another interpreter than its host, and every worker holds in memory whatever is imported
here. So nothing here imports the package around it, and all of it runs on Python 3.6 and newer: newer
features are tested for by ``sys.version_info``, and generics that exist at run time come from ``typing``.
"""

import sys

if sys.version_info < (3, 7):
    from . import strip_annotations

    sys.meta_path.insert(0, strip_annotations.Finder(__name__))
