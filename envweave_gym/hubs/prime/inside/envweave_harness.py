"""Harness of the library's second generation that runs a chat loop in this process: model calls, and tools over MCP.

The library's own loop is a script that it starts by uv, with packages from the index, for every episode. This one calls
the same endpoint, offers the same tools and ends the same way: with the first reply that calls no tool.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

import httpx

HarnessConfig: Any = import_module("verifiers.v1.configs.harness").HarnessConfig
message_to_wire: Any = import_module("verifiers.v1.dialects.chat").message_to_wire
Harness: Any = import_module("verifiers.v1.harness").Harness
mcp: Any = import_module("verifiers.v1.harnesses.utils.mcp")
ProgramResult: Any = import_module("verifiers.v1.runtimes").ProgramResult

__all__ = ["EnvweaveHarness"]

Chat = list[dict[str, Any]]


class EnvweaveHarnessConfig(HarnessConfig):
    """The fields that all harnesses have."""


class EnvweaveHarness(Harness[EnvweaveHarnessConfig]):
    """Chat loop without a shell."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> Any:
        """Talk to the model until a reply calls no tool."""
        system, prompt = self.resolve_prompt(data)
        messages: Chat = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(one) for one in prompt or []]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))
            http.headers["Authorization"] = f"Bearer {secret}"
            loop = _Loop(http, endpoint, ctx.model, tool_interception_url)
            if servers:
                loop.offer(*await mcp.connect_mcp({"mcpServers": servers}, stack))
            failure = await loop.run(messages)
        return ProgramResult(exit_code=1 if failure else 0, stdout="", stderr=failure)


class _Loop:
    """One conversation with the model."""

    def __init__(
        self, http: httpx.AsyncClient, endpoint: str, model: str, interception_url: str | None
    ) -> None:
        self._http, self._model, self._interception_url = http, model, interception_url
        self._url = f"{endpoint.rstrip('/')}/chat/completions"
        self._tools: Chat = []
        self._dispatch: dict[str, tuple[str, str]] = {}
        self._servers: dict[str, Any] = {}

    def offer(self, tools: Chat, dispatch: dict[str, tuple[str, str]], servers: dict[str, Any]) -> None:
        """Offer the tools of MCP servers to the model."""
        self._tools, self._dispatch, self._servers = tools, dispatch, servers

    async def run(self, messages: Chat) -> str:
        """Converse until a reply calls no tool; return an empty text, or why the endpoint refused a call."""
        while True:
            body = {"model": self._model, "messages": messages}
            if self._tools:
                body["tools"] = self._tools
            response = await self._http.post(self._url, json=body)
            if response.status_code != 200:
                return f"the endpoint answered with status {response.status_code}: {response.text}"
            message = response.json()["choices"][0]["message"]
            messages.append({name: value for name, value in message.items() if value is not None})
            calls = message.get("tool_calls") or []
            if not calls:
                return ""
            for call in calls:
                messages.append(await self._result_of(call))

    async def _result_of(self, call: dict[str, Any]) -> dict[str, Any]:
        name, arguments = call["function"]["name"], call["function"].get("arguments") or "{}"
        if self._interception_url:
            question = {"tool_call_id": call["id"], "name": name, "arguments": _loaded(arguments)}
            decision = (
                (await self._http.post(self._interception_url, json=question)).raise_for_status().json()
            )
            if decision["action"] == "stop":
                raise RuntimeError(decision["reason"])
            if decision["action"] == "deny":
                return decision["message"]
        content = await self._called(name, _loaded(arguments))
        return {"role": "tool", "tool_call_id": call["id"], "content": content, "name": name}

    async def _called(self, name: str, arguments: Any) -> Any:
        if not isinstance(arguments, dict):
            return f"error: tool arguments must be a JSON object, got {arguments!r}; resend as an object"
        if name not in self._dispatch:
            return f"error: unknown tool {name!r}"
        return await mcp.call_mcp(self._servers, self._dispatch, name, arguments)


def _loaded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
