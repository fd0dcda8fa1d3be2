"""``python -m envweave_gym_server.tinker``: the same as ``envweave tinker serve``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from envweave_gym.cli import reported
from envweave_gym.cli.tinker import require


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until SIGTERM, and return the exit code; ``argv`` are the command's arguments."""
    words = sys.argv[1:] if argv is None else list(argv)
    return reported(lambda: _serve(words), debug="--debug" in words)


def _serve(words: list[str]) -> int:
    require()
    from envweave_gym_server.tinker import tinker_program

    return tinker_program.main(words)


if __name__ == "__main__":
    sys.exit(main())
