"""TLS for tests: self-signed certificates, and a proxy that ends TLS in front of a server, as live Spaces have."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from absent import needs_command


class Certificate(NamedTuple):
    """A self-signed certificate, which clients may trust as a CA, and its key."""

    file: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """The TLS settings of a server that shows it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self)
        return context


def self_signed(folder: Path, *extensions: str, name: str = "IP:127.0.0.1") -> Certificate:
    """Make a certificate for a name, in files of the folder; skip the test without openssl."""
    needs_command("openssl")
    made = Certificate(folder / "certificate", folder / "key")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here"
    words = [word for one in (f"subjectAltName={name}", *extensions) for word in ("-addext", one)]
    files = ["-out", made.file, "-keyout", made.key]
    subprocess.run([*command.split(), *words, *files], check=True, capture_output=True)
    return made


@contextlib.contextmanager
def tls_in_front_of(port: int, certificate: Certificate) -> Iterator[int]:
    """The port of a proxy that decrypts TLS and passes bytes on to a port of this machine."""
    context, opened = certificate.context(), list[socket.socket]()
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                opened.append(client)
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    def serve(client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),  # such as a client that does not trust the certificate
            client,
            context.wrap_socket(client, server_side=True) as decrypted,
            socket.create_connection(("127.0.0.1", port)) as server,
        ):
            opened.append(decrypted)
            _pass_on(decrypted, server)

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        for one in (listener, *opened):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)
        listener.close()
        accepting.join(10)


def _pass_on(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Copy bytes in both directions until one end closes."""
    while True:
        ready = [client] if client.pending() else select.select([client, server], [], [])[0]
        for one in ready:
            data = one.recv(1 << 16)
            if not data:
                return
            (server if one is client else client).sendall(data)
