"""``python -m envweave_gym``: the program ``envweave``."""

import sys

from envweave_gym.cli import main

sys.exit(main())
