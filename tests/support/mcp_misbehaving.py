"""An MCP server of one file, whose first argument says what is wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VERSION, STATELESS = "2025-11-25", "2026-07-28"
ADD: dict[str, Any] = {
    "name": "add",
    "description": "Adds.",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
        "required": ["a"],
    },
}
state: dict[str, Any] = {"calls": 0, "asked": {}}


def send(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def answer(number: Any, result: Any) -> None:
    send({"jsonrpc": "2.0", "id": number, "result": result})


def refuse(number: Any, code: int, text: str, data: Any = None) -> None:
    send({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text, "data": data}})


def text(words: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(words)}]}


def greet(number: Any) -> None:
    answer(
        number, {"protocolVersion": VERSION, "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
    )


def added(params: dict[str, Any]) -> dict[str, Any]:
    arguments = params["arguments"]
    return text(arguments["a"] + arguments.get("b", 1))


def well(message: dict[str, Any]) -> None:
    """What a good server does."""
    number, method = message.get("id"), message.get("method")
    if method == "initialize":
        greet(number)
    elif method == "tools/list":
        answer(number, {"tools": [ADD]})
    elif method == "tools/call":
        state["calls"] += 1
        answer(number, added(message["params"]))


# What is wrong


def silent(message: dict[str, Any]) -> None:
    """Never answers."""


def silent_in_calls(message: dict[str, Any]) -> None:
    """Answers no call; what it was told since is in a file."""
    if message.get("method") == "notifications/cancelled":
        Path(sys.argv[2]).write_text(json.dumps(message["params"]))
    elif message.get("method") != "tools/call":
        well(message)


def junk(message: dict[str, Any]) -> None:
    """Prints lines that are no messages before each answer."""
    print("Listening … {not json}")
    print("[]")
    print("17", flush=True)
    well(message)


def only_junk(message: dict[str, Any]) -> None:
    for _ in range(40):
        print("junk " * 10_000, flush=True)


def wrong_id(message: dict[str, Any]) -> None:
    if message.get("method") == "tools/call":
        answer(999, text("not yours"))
    else:
        well(message)


def late(message: dict[str, Any]) -> None:
    """The first call takes longer than anyone waits, and is answered all the same."""
    if message.get("method") == "tools/call" and state["calls"] == 0:
        time.sleep(0.6)
    well(message)


def dies_in_calls(message: dict[str, Any]) -> None:
    """Ends in the middle of a call; its arguments say whether it would do any harm to call again."""
    if message.get("method") == "tools/list" and "repeatable" in sys.argv:
        answer(message["id"], {"tools": [{**ADD, "annotations": {"readOnlyHint": True}}]})
    elif message.get("method") == "tools/call":
        marker = Path(sys.argv[2])
        times = len(marker.read_text()) if marker.exists() else 0
        marker.write_text("x" * (times + 1))
        if times == 0:
            print("a first line\nout of paper, with the key s3cr3t-key", file=sys.stderr, flush=True)
            os._exit(3)
        well(message)
    else:
        well(message)


def dies_at_once(message: dict[str, Any]) -> None:
    print("no such configuration", file=sys.stderr, flush=True)
    os._exit(4)


def huge(message: dict[str, Any]) -> None:
    """A message that goes on and on."""
    if message.get("method") != "tools/call":
        well(message)
        return
    piece = "x" * (1 << 20)
    sys.stdout.write('{"jsonrpc": "2.0", "id": ' + str(message["id"]) + ', "result": "')
    for _ in range(70):
        sys.stdout.write(piece)
    sys.stdout.flush()


def large(message: dict[str, Any]) -> None:
    """Sends back what it was sent, however much that is."""
    if message.get("method") == "tools/call":
        answer(message["id"], text(message["params"]["arguments"]["a"]))
    else:
        well(message)


def loose(message: dict[str, Any]) -> None:
    """Writes JSON as Python does, with half characters and NaN."""
    if message.get("method") == "tools/call":
        answer(message["id"], {"structuredContent": {"half": "\ud800", "nan": float("nan")}})
    else:
        well(message)


def flooding(message: dict[str, Any]) -> None:
    """Tells so much that it never gets to an answer."""
    import threading

    def flood() -> None:
        while True:
            send({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 1000}})

    if message.get("method") == "tools/call":
        threading.Thread(target=flood, daemon=True).start()
    else:
        well(message)


def deaf(message: dict[str, Any]) -> None:
    """Reads nothing any more once it is greeted."""
    well(message)
    if message.get("method") == "tools/list":
        time.sleep(60)


def stuck(message: dict[str, Any]) -> None:
    """Says so much before it reads on that it is stuck, unless that is read."""
    if message.get("method") == "notifications/initialized":
        for _ in range(40):
            send({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 10_000}})
    large(message)


def bad_schema(message: dict[str, Any]) -> None:
    if message.get("method") == "tools/list":
        answer(message["id"], {"tools": [{**ADD, "inputSchema": {"type": "object", "properties": [1]}}]})
    else:
        well(message)


def no_list(message: dict[str, Any]) -> None:
    if message.get("method") == "tools/list":
        answer(message["id"], {"tools": None})
    else:
        well(message)


def no_result(message: dict[str, Any]) -> None:
    if message.get("method") == "tools/call":
        send({"jsonrpc": "2.0", "id": message["id"]})
    else:
        well(message)


def paging(message: dict[str, Any]) -> None:
    """Three pages, and the last points back to itself."""
    if message.get("method") != "tools/list":
        well(message)
        return
    page = int(message["params"].get("cursor", "0"))
    tool = {**ADD, "name": f"add{page}"}
    answer(message["id"], {"tools": [tool], "nextCursor": str(min(page + 1, 2))})


def chatty(message: dict[str, Any]) -> None:
    """Tells its progress and asks back before it answers: only who answers its ping gets a result."""
    number = message.get("id")
    if message.get("method") == "tools/call":
        for done in range(3):
            progress = {"progressToken": 1, "progress": done}
            send({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        for name, method in (("p", "ping"), ("s", "sampling/createMessage"), ("r", "roots/list")):
            send({"jsonrpc": "2.0", "id": name, "method": method, "params": {}})
        state["asked"], state["waiting"] = {}, number
    elif "method" not in message:
        state["asked"][number] = message.get("result", message.get("error", {}).get("code"))
        if len(state["asked"]) == 3:
            answer(state["waiting"], text(json.dumps(state["asked"])))
    else:
        well(message)


def old(message: dict[str, Any]) -> None:
    if message.get("method") == "initialize":
        answer(message["id"], {"protocolVersion": "1999-01-01", "capabilities": {}})
    else:
        well(message)


def stateless(message: dict[str, Any]) -> None:
    """Knows no greeting: each request says of itself what it must."""
    number, method = message.get("id"), message.get("method")
    if method == "initialize":
        refuse(number, -32022, "Unsupported protocol version", {"supported": [STATELESS]})
        return
    meta = message["params"].get("_meta", {})
    if meta.get("io.modelcontextprotocol/protocolVersion") != STATELESS:
        refuse(number, -32602, "no _meta")
    elif method == "server/discover":
        answer(number, {"resultType": "complete", "supportedVersions": [STATELESS], "capabilities": {}})
    elif method == "tools/call" and message["params"]["arguments"]["a"] == 0:
        answer(number, {"resultType": "input_required", "inputRequests": {}})
    else:
        well(message)


def refusing(message: dict[str, Any]) -> None:
    """Takes neither a greeting nor anything else."""
    refuse(message.get("id"), -32000, "go away")


def failing(message: dict[str, Any]) -> None:
    if message.get("method") == "tools/call":
        answer(message["id"], {**text("line one\nline two"), "isError": True})
    else:
        well(message)


def noisy(message: dict[str, Any]) -> None:
    """Writes far more to stderr than a pipe holds."""
    sys.stderr.write("noise\n" * 100_000)
    sys.stderr.flush()
    well(message)


def family(message: dict[str, Any]) -> None:
    """Has children that do not end by TERM, one in a session of its own; their numbers are its answer."""
    if message.get("method") == "tools/call":
        sleeping = [
            sys.executable,
            "-c",
            "import signal, time; signal.signal(15, lambda *_: 0); time.sleep(60)",
        ]
        children = [subprocess.Popen(sleeping, start_new_session=new) for new in (False, True)]
        answer(message["id"], text(json.dumps([os.getpid(), *(child.pid for child in children)])))
    else:
        well(message)


def obstinate(message: dict[str, Any]) -> None:
    """Ends neither with its stdin nor by TERM."""
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    family(message)


def slow(message: dict[str, Any]) -> None:
    """Calls take so many milliseconds, several at a time."""
    import threading

    if message.get("method") == "tools/list" and "repeatable" in sys.argv:
        answer(message["id"], {"tools": [{**ADD, "annotations": {"readOnlyHint": True}}]})
        return
    if message.get("method") != "tools/call":
        well(message)
        return
    note_request()
    seconds = message["params"]["arguments"]["a"] / 1000
    threading.Timer(seconds, lambda: well(message)).start()


def slow_to_greet(message: dict[str, Any]) -> None:
    if message.get("method") == "initialize":
        note_request()
        time.sleep(0.6)
    well(message)


def note_request() -> None:
    """Append to the file that the last argument names, if it is a path."""
    if sys.argv[-1].startswith("/"):
        with open(sys.argv[-1], "a") as requests:
            requests.write("x")


def environment(message: dict[str, Any]) -> None:
    if message.get("method") == "tools/call":
        answer(message["id"], text(json.dumps({"env": dict(os.environ), "cwd": os.getcwd()})))
    else:
        well(message)


def main() -> None:
    behaves: Callable[[dict[str, Any]], None] = globals()[sys.argv[1]]
    for line in sys.stdin:
        behaves(json.loads(line))
    if sys.argv[1] == "obstinate":
        time.sleep(60)


if __name__ == "__main__":
    main()
