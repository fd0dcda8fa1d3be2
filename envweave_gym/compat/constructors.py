"""Constructors of CodeAct environments: one with a replaceable reward, and one with tools of MCP servers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.protocols import name_of, state_of
from envweave_gym.core.reply_parsing import parse_action
from envweave_gym.registry.make import make
from envweave_gym.rewards.transforms import RewardFunction

_ID = "envweave/CodeAct-v0"


class WithTransform(gym.Wrapper[Any, str, Any, str]):
    """Wrapper whose reward function can be replaced at any time: ``env.transform = math_transform(42)``.

    Without it, Gymnasium would set the attribute on the outermost wrapper, where it has no effect. ``state`` and
    ``parse_action`` are defined here too, as Gymnasium's wrappers do not forward them.
    """

    @property
    def spec(self) -> Any:
        """The spec that the ID is registered with, which lists no wrappers."""
        return self.unwrapped.spec

    @property
    def transform(self) -> RewardFunction | None:
        """The function that computes the reward of a step; with ``None`` every reward is 0."""
        return getattr(self.unwrapped, "transform", None)

    @transform.setter
    def transform(self, value: RewardFunction | None) -> None:
        core = self.unwrapped
        if not hasattr(core, "transform"):
            raise InvalidArgument(
                f"{name_of(self)} runs on a server, to which no transform can be sent; "
                "wrap it in envweave_gym.rewards.RewardTransform(env, transform)"
            )
        core.transform = value  # pyright: ignore[reportAttributeAccessIssue]

    def state(self) -> Any:
        """Return the result of :func:`envweave_gym.state_of`."""
        return state_of(self.env)

    def parse_action(self, text: str, agent: str | None = None) -> str:
        """Return the program in a model's reply."""
        return parse_action(self.env, text, agent)


def codeact_env(transform: RewardFunction | None = None, **kwargs: Any) -> WithTransform:
    """Make ``envweave/CodeAct-v0`` in a wrapper whose reward function ``transform`` may be replaced at any time.

    ``kwargs`` are those of :func:`envweave_gym.make`.
    """
    given = {} if transform is None else {"transform": transform}
    return WithTransform(make(_ID, **given, **kwargs))


def mcp_env(servers: Any = None, **kwargs: Any) -> WithTransform:
    """Make ``envweave/CodeAct-v0`` with the tools of one MCP server, or of a list of servers.

    A server is given by its entry in an ``mcp.json``, a whole ``mcp.json``, or a URL. Without servers the
    tools are ``file_read`` and ``file_write``, for files of the episode.
    """
    if servers is None:
        kwargs.setdefault("files", True)
        return codeact_env(**kwargs)
    if "tools" in kwargs:
        raise InvalidArgument(f"{_ID}: mcp_env(servers) are its tools; give functions and servers to tools=")
    return codeact_env(tools=servers, **kwargs)
