"""``python -m envweave_gym_server [ID…]``: the same as ``envweave serve``."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="envweave serve")
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--allow-anonymous", action="store_true")
    parser.add_argument("--max-sessions", type=int, default=1024)
    parser.add_argument("--idle-timeout", type=float, default=300.0)
    parser.add_argument("--isolation", default="thread")
    args = parser.parse_args(argv)
    from envweave_gym_server.app import create_app
    from envweave_gym_server.serve import Server

    listener = socket.create_server((args.host, args.port), backlog=2048)
    listener.set_inheritable(True)
    token = None if args.allow_anonymous else os.environ["ENVWEAVE_TOKEN"]
    app = create_app(
        *args.ids,
        token=token,
        max_sessions=args.max_sessions,
        idle_timeout=args.idle_timeout,
        isolation=args.isolation,
    )
    print(f"envweave serves at http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    Server(app, listener).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
