"""A raw socket that answers what it gets: the floor under every protocol. ``python -m … PORT``"""

from __future__ import annotations

import socket
import sys


def main() -> None:
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client:
            while data := client.recv(1 << 20):
                client.sendall(data)


if __name__ == "__main__":
    main()
