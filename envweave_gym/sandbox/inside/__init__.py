"""What runs in processes of their own, with nothing but the standard library.

The zygote may be started by another interpreter than the one of its host, and what is imported here is what
every worker has in memory. So nothing here imports the package around it, and all of it runs on every Python
from 3.6 on: what is newer is asked for by ``sys.version_info``, and generics at run time are of ``typing``.
"""

import sys

if sys.version_info < (3, 7):
    from . import postponed

    sys.meta_path.insert(0, postponed.Finder(__name__))
