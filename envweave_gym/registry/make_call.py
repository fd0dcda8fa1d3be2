"""Checked arguments of one call of :func:`envweave_gym.make`, and functions that take some out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gymnasium.vector import AutoresetMode

from envweave_gym.core.arguments import autoreset_mode_of, check_autoreset, check_num_envs, one_limit
from envweave_gym.core.config import one_of
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.registry.catalog import REGISTRIES, Api
from envweave_gym.vector.row_groups import groups_of, refuse_group

STACK_ARGUMENTS = ("max_steps", "autoreset", "on_fault", "reset_deadline", "reproducible")
"""Arguments of our wrappers, which ``make`` takes for environments of other packages too."""
_VECTORIZATION_MODES = ("sync", "async", "vector_entry_point")


@dataclass(frozen=True)
class MakeCall:
    """Arguments of one call of ``make``."""

    name: str
    api: Api | None
    num_envs: int | None
    """Number of rows of a vector; ``None`` for a single environment or a game."""
    backend: Any
    kwargs: dict[str, Any]
    """All other arguments; functions that consume some remove them."""

    @classmethod
    def of(
        cls,
        name: Any,
        api: Any,
        num_envs: int | None,
        group: int | None,
        autoreset: bool,
        backend: Any,
        kwargs: dict[str, Any],
    ) -> Self:
        """Check the arguments that mean the same for all environments, and return the call."""
        if not isinstance(name, str):
            raise InvalidArgument(f"make({shown(name)}): a name is a string; gymnasium.make takes specs")
        if api is not None:
            one_of(f"make({shown(name)}): api", api, REGISTRIES)
        if num_envs is not None:
            check_num_envs(name, num_envs)
        if group is not None:
            if num_envs is None:
                raise refuse_group(name)
            groups_of(name, group, num_envs)
            kwargs["group"] = group
        check_autoreset(name, autoreset)
        mode = kwargs.get("render_mode")
        if not isinstance(mode, str | None):
            raise InvalidArgument(f"{name}: render_mode={shown(mode)} is not a text, like 'ansi'")
        limit = one_limit(name, kwargs.pop("max_steps", None), kwargs.pop("max_episode_steps", None))
        if limit is not None:
            kwargs["max_steps"] = limit
        if autoreset:
            kwargs["autoreset"] = True
        return cls(name, api, num_envs, backend, kwargs)


def vector_arguments(name: str, kwargs: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Remove and return ``vectorization_mode`` (or ``None``) and the arguments of Gymnasium's vector classes."""
    mode = autoreset_mode_of(name, kwargs.pop("autoreset_mode", "NextStep"))
    if kwargs.pop("autoreset", False) and mode is AutoresetMode.DISABLED:
        raise InvalidArgument(f"{name}: autoreset=True and autoreset_mode='Disabled' contradict each other")
    how = kwargs.pop("vectorization_mode", None)
    if how is not None:
        one_of(f"{name}: vectorization_mode", how, _VECTORIZATION_MODES)
    own = kwargs.pop("vector_kwargs", {})
    if not isinstance(own, Mapping):
        raise InvalidArgument(f"{name}: vector_kwargs={shown(own)} is no dict of arguments")
    if own.keys() - {"autoreset_mode"} and how not in ("sync", "async"):
        raise InvalidArgument(
            f"{name}: vector_kwargs= go to Gymnasium's own vectors; give vectorization_mode='sync' or "
            "'async' too"
        )
    return how, {"autoreset_mode": mode.value, **own}


def take_group(name: str, kwargs: dict[str, Any]) -> int | None:
    """Remove ``group`` from ``kwargs`` and return it.

    Rows of a group play the same episodes, so their resets need seeds: ``reproducible=False`` is refused.
    """
    group = kwargs.pop("group", None)
    if group not in (None, 1) and not kwargs.setdefault("reproducible", True):
        raise InvalidArgument(
            f"{name}: group={shown(group)} needs seeds at every reset; leave reproducible=False out"
        )
    return group


def refuse_for_games(name: str, num_envs: int | None, kwargs: dict[str, Any]) -> None:
    """Raise ``InvalidArgument`` if ``num_envs`` or arguments are given that only Gymnasium environments take."""
    given = ["num_envs"] * (num_envs is not None)
    given += [key for key in STACK_ARGUMENTS if key in kwargs and key != "reproducible"]
    if given:
        refused = " and no ".join(given)
        raise InvalidArgument(f"{name} is a multi-agent environment; it takes no {refused}, leave that out")


def no_api(name: str, api: Api | None, *kinds: str) -> InvalidArgument:
    """Return the error for an API that the environment does not have; ``kinds`` are those that it has."""
    return InvalidArgument(f"{name} has no api={shown(api)}; it has {' and '.join(map(repr, kinds))}")
