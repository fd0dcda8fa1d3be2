"""Exceptions for wrong results of an environment's ``reset`` and ``step``: missing values, or a reward of NaN."""

from __future__ import annotations

import re
import traceback
from typing import Any

import gymnasium.error
import numpy as np

from envweave_gym.core.faults import shown

NOT_UNPACKED = (TypeError, ValueError, AttributeError)
"""Exceptions of code that unpacks a result of too few or too many values, or copies an info that is no dict."""
_VALUES = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}
_CHECKS = ("gymnasium.wrappers.common", "gymnasium.utils.passive_env_checker")
"""Modules of Gymnasium that unpack results before our wrappers do, as ``gymnasium.make`` puts them inside."""
_OF_RESULTS = re.compile("unpack|result|return")


def wrong_result(name: str, call: str, result: Any) -> TypeError:
    """Return the exception for a ``result`` of ``call`` ("reset" or "step") that has not the values of Gymnasium."""
    if not isinstance(result, tuple):
        found = f"no tuple: {shown(result)}"
    elif len(result) == len(_VALUES[call]):
        found = f"an info that is no dict: {shown(result[-1])}"
    else:
        found = f"{len(result)} values: {shown(result)}"
    return TypeError(f"{name}: {call}() returned {found}; {_due(call)}")


def with_name(name: str, call: str, error: BaseException) -> BaseException:
    """Return ``error``; or, if a wrapper of Gymnasium raised it for a wrong result, one that names the environment."""
    if type(error) not in (TypeError, ValueError, AssertionError, gymnasium.error.Error):
        return error
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if frame.f_globals.get("__name__") not in _CHECKS or not _OF_RESULTS.search(str(error)):
        return error
    named = TypeError(f"{name}: {type(error).__name__} of {call}(): {error}; {_due(call)}")
    named.__cause__ = error
    return named


def _due(call: str) -> str:
    return f"it must return {len(_VALUES[call])} values: {', '.join(_VALUES[call])}"


def as_flag(name: str, field: str, value: Any) -> bool:
    """Return ``terminated`` or ``truncated`` as a bool; raise ``TypeError`` for a text and others that are no bools.

    ``None`` is False, as authors leave a flag out; numbers are the flags of older environments.
    """
    if value is None or isinstance(value, int | np.bool_ | np.integer):
        return bool(value)
    raise TypeError(f"{name}: {field}={shown(value)} is no bool; give True or False")


def no_finite_reward(name: str, reward: Any, of: str = "") -> ValueError:
    """Return the exception for a reward that is NaN or infinite; ``of`` is the agent or the row that gets it."""
    whose = f"the reward {shown(reward)} of {of}" if of else f"the reward {shown(reward)}"
    return ValueError(
        f"{name}: {whose} is no finite number; no trainer learns from it, so mend the environment"
    )
