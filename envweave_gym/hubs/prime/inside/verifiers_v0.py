"""Plays packages of the library's first generation: ``load_environment(id, **args)`` and ``Environment.generate``."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from .unplayable import Unplayable

AGENT = "agent"
_CLIENT_TIMEOUT_S = 604_800.0
"""Timeout of the library's client: a week, as the agent's own deadlines decide."""
_MAX_TURNS_REASON = "max_turns_reached"


async def load(settings: dict[str, Any]) -> Player:
    """Load the environment in this thread, which must be the main one: the library installs signal handlers."""
    try:
        vf: Any = import_module("verifiers")
        client_config = import_module("verifiers.types").ClientConfig
    except (ImportError, AttributeError) as error:
        raise Unplayable(f"its version of verifiers is not one from 0.1.11 to 0.3.1 ({error})") from None
    return Player(vf.load_environment(settings["module"], **settings["args"]), client_config, settings)


class Player:
    """One environment, and the rows of its data set."""

    def __init__(self, env: Any, client_config: Any, settings: dict[str, Any]) -> None:
        self._env, self._client_config, self._settings = env, client_config, settings
        self._rows = env.get_eval_dataset() if settings["split"] == "eval" else env.get_dataset()
        tasks = min(len(self._rows), settings["limit"])
        self.ready = {"agents": [AGENT], "tasks": tasks, "replaced": {}}
        known = inspect.signature(env.generate).parameters
        self._quiet = {name: value for name, value in _QUIET.items() if name in known}

    async def play(self, index: int, prefix: str) -> dict[str, Any]:
        """Evaluate one row as the library does, with group scoring of a group of one."""
        client = self._client_config(
            api_base_url=f"{self._settings['url']}/{prefix}/v1",
            api_key_var=self._settings["key"],
            timeout=_CLIENT_TIMEOUT_S,
            max_retries=0,
        )
        results = await self._env.generate(
            inputs=[dict(self._rows[index])], client=client, model=AGENT, **self._quiet
        )
        (output,) = results["outputs"]
        if output.get("error") is not None:
            raise RuntimeError(f"the library reports {output['error']}")
        return self._result(output)

    def _result(self, output: dict[str, Any]) -> dict[str, Any]:
        stop = output.get("stop_condition")
        # An environment of one turn always ends by its limit.
        by_limit = stop == _MAX_TURNS_REASON and getattr(self._env, "max_turns", 1) != 1
        metrics = {name: None if value is None else float(value) for name, value in output["metrics"].items()}
        return {
            "rewards": {AGENT: float(output["reward"])},
            "metrics": {AGENT: metrics},
            "stops": {AGENT: stop},
            "truncated": {AGENT: bool(output.get("is_truncated")) or by_limit},
        }

    async def close(self) -> None:
        """Do nothing: the library tears its environment down when the process ends."""


def _no_progress(*_: Any) -> None:
    """Take the place of the library's progress bar."""


_QUIET: dict[str, Any] = {
    "state_columns": ["stop_condition", "error", "is_truncated"],
    "on_start": _no_progress,
    "on_progress": _no_progress,
}
