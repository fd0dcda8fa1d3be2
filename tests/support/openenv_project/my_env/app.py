"""The application of the server, as plain ASGI."""

from __future__ import annotations

import json
from typing import Any

SCHEMA = {
    "action": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
    "observation": {"type": "object", "properties": {"said": {"type": "string"}}},
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request, or play a session."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] != "websocket.disconnect":
            if event["type"] == "websocket.receive":
                message = json.loads(event["text"])
                if message["type"] == "close":
                    await send({"type": "websocket.close"})
                    return
                said = message["data"].get("message", "ready")
                data = {"observation": {"said": said}, "reward": 1.0, "done": False}
                await send(
                    {"type": "websocket.send", "text": json.dumps({"type": "observation", "data": data})}
                )
    elif scope["type"] == "http":
        known = {"/schema": SCHEMA, "/health": {"status": "healthy"}}.get(scope["path"])
        await send({"type": "http.response.start", "status": 200 if known else 404, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(known).encode()})


def main() -> None:
    """The script ``server`` of such projects, which is not run here."""
    raise NotImplementedError
