"""Stand-in of the Prime Environments Hub, over HTTP in this process, which the command ``prime`` accepts too."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hub_wheels import wheel, wheel_name

KEY = "a-key-of-the-hub"
Answer = tuple[int, dict[str, str], bytes]


class PrimeHub:
    """The hub's packages; ``overrides`` are answers that replace the right ones, by path."""

    def __init__(self) -> None:
        self.packages: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.overrides: dict[str, Answer | Callable[[], Answer]] = {}
        self.requests: list[tuple[str, str | None]] = []
        """The path and the Authorization header of each request."""
        self.url = ""

    def publish(
        self,
        owner: str,
        name: str,
        version: str = "1.0.0",
        source: str = "",
        *,
        data: bytes | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Add a version; ``more`` are fields of its details, and ``requires`` is for the wheel."""
        requires = more.pop("requires", ())
        data = wheel(name, version, source, requires=requires) if data is None else data
        row = {
            "version": version,
            "data": data,
            "sha256": hashlib.sha256(data).hexdigest(),
            "content_hash": hashlib.sha256(b"source" + data).hexdigest(),
            "filename": more.pop("filename", wheel_name(name, version)),
            "private": more.pop("private", False),
            "more": more,
        }
        self.packages.setdefault((owner, name), []).append(row)
        return row

    def answer(self, path: str, query: dict[str, list[str]], key: str | None) -> Answer:
        if path in self.overrides:
            given = self.overrides[path]
            return given() if callable(given) else given
        parts = path.strip("/").split("/")
        if parts[:3] == ["api", "v1", "environmentshub"]:
            return self._api(parts[3:], query, key)
        if len(parts) == 3 and parts[1] == "simple":
            return self._index(parts[0], parts[2])
        if len(parts) == 4 and parts[2].startswith("@"):
            return self._file(*parts)
        return _missing()

    def _api(self, parts: list[str], query: dict[str, list[str]], key: str | None) -> Answer:
        if not parts or parts == [""]:
            words = query.get("search", [""])[0]
            rows = [
                {
                    **self._named(owner, name),
                    "latest_version": versions[-1]["version"],
                    "visibility": "PUBLIC",
                }
                for (owner, name), versions in self.packages.items()
                if words in name and not versions[-1]["private"]
            ]
            return _json({"data": rows, "total_count": len(rows)})
        versions = self.packages.get((parts[0], parts[1]), []) if len(parts) == 3 else []
        if not versions or (versions[-1]["private"] and key != f"Bearer {KEY}"):
            return _missing()
        if parts[2] == "versions":
            listed = [
                {"version": row["version"], "semantic_version": row["version"], "sha256": row["content_hash"]}
                for row in reversed(versions)
            ]
            return _json({"data": {"versions": listed}})
        wanted = parts[2].removeprefix("@")
        found = [
            row
            for row in versions
            if wanted in ("latest", row["version"])
            or (len(wanted) >= 8 and row["content_hash"].startswith(wanted))
        ]
        return _json({"data": self._details(parts[0], parts[1], found[-1])}) if found else _missing()

    def _named(self, owner: str, name: str) -> dict[str, Any]:
        return {
            "id": f"{owner}-{name}",
            "name": name,
            "owner": {"name": owner, "type": "user"},
            "description": f"The environment {name}",
            "stars": 0,
            "updated_at": "2026-11-01T00:00:00Z",
            "tags": [],
        }

    def _details(self, owner: str, name: str, row: dict[str, Any]) -> dict[str, Any]:
        latest = {"semantic_version": row["version"], "content_hash": row["content_hash"]}
        address = f"{self.url}/{owner}/{name}/@{row['content_hash'][:8]}/{row['filename']}"
        return {
            **self._named(owner, name),
            "visibility": "PRIVATE" if row["private"] else "PUBLIC",
            "metadata": {"description": f"The environment {name}"},
            **latest,
            "latest_version": latest,
            "wheel_url": None if row["private"] else address,
            "simple_index_url": None if row["private"] else f"{self.url}/{owner}/simple/",
            "url_dependencies": [],
            **row["more"],
        }

    def _index(self, owner: str, name: str) -> Answer:
        rows = self.packages.get((owner, name), [])
        links = [
            f'<a href="/{owner}/{name}/@{row["content_hash"][:8]}/{row["filename"]}#sha256={row["sha256"]}">'
            f"{row['filename']}</a>"
            for row in rows
        ]
        return (
            200,
            {"Content-Type": "text/html"},
            f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode(),
        )

    def _file(self, owner: str, name: str, digest: str, filename: str) -> Answer:
        for row in self.packages.get((owner, name), []):
            if row["filename"] == filename and row["content_hash"].startswith(digest[1:]):
                return 200, {"Content-Type": "application/octet-stream"}, row["data"]
        return _missing()


def _json(value: Any) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _missing() -> Answer:
    return 404, {"Content-Type": "application/json"}, b'{"detail": "Environment not found"}'


@contextmanager
def serving(hub: PrimeHub) -> Iterator[PrimeHub]:
    """Serve the hub on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            key = self.headers.get("Authorization")
            hub.requests.append((parts.path, key))
            status, headers, body = hub.answer(parts.path, parse_qs(parts.query), key)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
