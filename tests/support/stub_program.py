"""A hub package of the first generation on a stub of the library: its ``verifiers`` needs nothing but Python.

So the tests of sessions, ports and faults need no other package, and the program is the real one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hub_wheels import wheel

from envweave_gym.hubs.prime.hub_lock import HubPackage

VERIFIERS = """
import asyncio, importlib, json, os, sys, urllib.request

def load_environment(module, **args):
    return importlib.import_module(module).load_environment(**args)

def ask(url, key, messages, model="agent", **more):
    body = json.dumps({"model": model, "messages": messages, **more}).encode()
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body, head), timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]
"""
TYPES = """
class ClientConfig:
    def __init__(self, api_base_url, api_key_var, timeout, max_retries):
        import os
        self.url, self.key = api_base_url, os.environ[api_key_var]
"""
SECOND_GENERATION = {
    "v1/__init__.py": """
import importlib

def resolve_env_config(args):
    return importlib.import_module(args["taskset"]["id"]).ROLES
""",
    "v1/harnesses/__init__.py": "",
    "v1/harnesses/utils/__init__.py": "",
    "v1/harnesses/utils/mcp.py": "",
    "v1/configs/__init__.py": "",
    "v1/configs/agent.py": "agent_config_fields = dict",
}
"""As much of the second generation as knows the roles of a package."""
PAIR = """
import types
import verifiers.v1

__all__ = ["ROLES"]

ROLES = {name: types.SimpleNamespace(client=client) for name, client in (("left", None), ("right", None), ("judge", 1))}
"""
"""A package with two agents, and a role with a client of its own."""
PACKAGE = """
import asyncio, atexit, os, random, signal, subprocess, sys, threading, time
import verifiers

print("noise on stdout")
sys.stdin.read()

class Env:
    max_turns = 3

    def __init__(self, mode="guess", rows=3, path=None):
        self.mode, self.path = mode, path
        self.rows = [{"n": n} for n in range(rows)]
        if mode == "load":
            raise ValueError("this package does not want to")
        if mode == "exit":
            sys.exit(3)
        if mode == "teardown":
            atexit.register(self.tear_down)

    def tear_down(self):
        time.sleep(1.5)  # more than a program has after its lifeline and SIGTERM without patience
        open(self.path, "w").write("done")

    def get_dataset(self):
        return self.rows

    get_eval_dataset = get_dataset

    async def generate(self, inputs, client, model, **_):
        (row,) = inputs
        call = lambda messages, **more: asyncio.to_thread(verifiers.ask, client.url, client.key, messages, **more)
        mode = self.mode
        if mode == "silent":
            return {"outputs": [self.output(0.0)]}
        if mode == "hang":
            await asyncio.sleep(3600)
        if mode == "die":
            print("last words", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "raise":
            raise RuntimeError("the tools are gone")
        if mode == "error":
            return {"outputs": [{**self.output(1.0), "error": "SandboxError()"}]}
        if mode == "orphan":
            child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
            open(self.path, "w").write(str(child.pid))
        if mode == "set":
            return {"outputs": [self.output(1.0, {1})]}
        if mode == "rewardless":
            sys.modules["_envweave_hub.verifiers_v0"].AGENT = "somebody else"
        if mode == "stranger":
            await call([{"role": "user", "content": "hi"}], model="nobody")
        if mode == "garbage":
            await call("not a list")
        hint = time.time_ns() if mode == "clock" else random.randrange(1000)
        messages = [{"role": "user", "content": f"Guess {row['n']}, {hint}"}]
        for turn in range(self.max_turns):
            reply = await call(messages)
            if mode == "die later":
                os._exit(4)
            if mode == "block later":
                time.sleep(3600)
            if mode in ("hang later", "teardown"):
                await asyncio.sleep(3600)
            messages = [*messages, reply, {"role": "user", "content": f"Not {reply['content']}"}]
            if reply["content"] == str(row["n"]):
                return {"outputs": [self.output(1.0 / (turn + 1), "solved")]}
        return {"outputs": [self.output(-1.0, "max_turns_reached")]}

    def output(self, reward, stop="end"):
        return {"reward": reward, "metrics": {"turns": 1.0}, "stop_condition": stop, "error": None}

def load_environment(**args):
    return Env(**args)
"""


def stub_package(folder: Path) -> tuple[HubPackage, Path]:
    """The package, and an interpreter that has it and the stub."""
    made = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=60)
    (site,) = made.glob("lib/python3*/site-packages")
    (site / "verifiers").mkdir()
    (site / "verifiers" / "__init__.py").write_text(VERIFIERS)
    (site / "verifiers" / "types.py").write_text(TYPES)
    (site / "guess.py").write_text(PACKAGE)
    package = HubPackage(
        owner="acme", name="guess", version="1.0.0", sha256="0" * 64, filename="guess.whl", generation="v0"
    )
    return package, made / "bin" / "python"


def tools_wheel() -> bytes:
    """A dependency of hub packages: a package, a module, a compiled one, a namespace, a file, and a command."""
    paths = ("tools/__init__.py", "tools/part.py", "ours.py", "shared/one.py", "ours.json", "README.md")
    files = dict.fromkeys((*paths, "fast.cpython-311-x86_64-linux-gnu.so"), b"")
    files["tools-1.0.dist-info/entry_points.txt"] = b"[console_scripts]\ntool = tools:main\n"
    return wheel("tools", "1.0", files=files, module="_tools_marker")


def library_wheels(folder: Path) -> None:
    """Write wheels into a folder that uv takes for its only index: the stub of each generation, and ``tools``."""
    folder.mkdir()
    (folder / "tools-1.0-py3-none-any.whl").write_bytes(tools_wheel())
    for version in ("0.3.1", "0.3.2", "0.4.0"):
        files = {"verifiers/__init__.py": VERIFIERS.encode(), "verifiers/types.py": TYPES.encode()}
        if version == "0.4.0":
            files |= {f"verifiers/{path}": text.encode() for path, text in SECOND_GENERATION.items()}
        data = wheel("verifiers", version, files=files, module="_verifiers_marker")
        (folder / f"verifiers-{version}-py3-none-any.whl").write_bytes(data)
