"""Checks constructor and reset arguments; raises ``InvalidArgument`` with one sentence that names the ID.

In all functions ``name`` is the ID or another name of the environment, for errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from gymnasium.vector import AutoresetMode

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, nearest, shown

_MIN_DEADLINE_S, _MAX_DEADLINE_S = 0.001, 604_800.0  # from a millisecond to a week
_FOR_SERVERS = ("call_deadline", "token", "replicas", "warm", "image")
"""Arguments of clients and of backends that start servers."""


def check_int(
    which: str, value: Any, what: str, least: int, most: int | None = None, *, or_none: bool = False
) -> None:
    """Raise ``InvalidArgument`` unless ``value`` is an int from ``least`` to ``most``, or an allowed ``None``.

    ``which`` names the argument in the message, and ``what`` says what the value is not: ``no number of rounds``.
    """
    if or_none and value is None:
        return
    if type(value) is not int or value < least or (most is not None and value > most):
        allowed = f"an int >= {least}" if most is None else f"an int from {least} to {most}"
        raise InvalidArgument(
            f"{which}={shown(value)} is {what}; give {allowed}{' or None' if or_none else ''}"
        )


def check_num_envs(name: str, num_envs: Any) -> None:
    """Raise ``InvalidArgument`` unless ``num_envs`` is a positive int."""
    check_int(f"{name}: num_envs", num_envs, "not a number of environments", 1)


def check_autoreset(name: str, autoreset: Any) -> None:
    """Raise ``InvalidArgument`` unless ``autoreset`` is a bool."""
    if not isinstance(autoreset, bool):
        raise InvalidArgument(
            f"{name}: autoreset={shown(autoreset)} is not True or False; "
            "a vector takes autoreset_mode= instead"
        )


def check_reproducible(name: str, reproducible: Any) -> None:
    """Raise ``InvalidArgument`` unless ``reproducible`` is a bool."""
    if not isinstance(reproducible, bool):
        raise InvalidArgument(f"{name}: reproducible={shown(reproducible)} is not True or False")


def check_faults(name: str, on_fault: Any, reset_deadline: Any) -> None:
    """Raise ``InvalidArgument`` unless ``on_fault`` and ``reset_deadline`` have valid values."""
    if not isinstance(on_fault, str) or on_fault not in ("raise", "truncate"):
        raise InvalidArgument(f"{name}: on_fault={shown(on_fault)} is not 'raise' or 'truncate'")
    check_deadline(name, "reset_deadline", reset_deadline, least=0.0)


def check_deadline(name: str, which: str, seconds: Any, least: float = _MIN_DEADLINE_S) -> None:
    """Raise ``InvalidArgument`` unless the argument ``which`` is a number of seconds, from ``least`` to a week."""
    # Not isinstance(), as True is an int. NaN fails the comparison.
    if type(seconds) not in (int, float) or not least <= seconds <= _MAX_DEADLINE_S:
        allowed = f"from {least:g} to {_MAX_DEADLINE_S:g} (a week)"
        raise InvalidArgument(f"{name}: {which}={shown(seconds)} is not a number of seconds {allowed}")


def autoreset_mode_of(name: str, mode: str | AutoresetMode) -> AutoresetMode:
    """Convert a string to the ``AutoresetMode`` that it names; raise ``InvalidArgument`` if it names no mode."""
    try:
        return AutoresetMode(mode)
    except ValueError:
        allowed = ", ".join(repr(known.value) for known in AutoresetMode)
        given = shown(mode)
        raise InvalidArgument(f"{name}: autoreset_mode={given} is unknown; there are {allowed}") from None


def one_limit(name: str, max_steps: Any, max_episode_steps: Any) -> Any:
    """Return ``max_steps`` or its alias ``max_episode_steps``; raise ``InvalidArgument`` if both are given."""
    if max_steps is not None and max_episode_steps is not None:
        raise InvalidArgument(f"{name}: max_steps and max_episode_steps are the same limit; give one of them")
    return max_episode_steps if max_steps is None else max_steps


def step_limit(name: str, max_steps: Any) -> int | None:
    """Return the checked ``max_steps``, or ``None`` if it sets no limit (``None`` or -1)."""
    if max_steps is None or max_steps == -1:
        return None
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise InvalidArgument(
            f"{name}: max_steps={shown(max_steps)} is not a step limit; give an int >= 1, or -1 for none"
        )
    return max_steps


def check_options(
    name: str, options: Any, metadata: Mapping[str, Any], *, also: tuple[str, ...] = ()
) -> None:
    """Raise ``InvalidArgument`` for reset options that the environment does not know.

    An environment that lists its options in ``metadata["reset_options"]`` takes only these; without the
    list it takes any option. ``also`` are further options, of a wrapper, that the error lists as allowed.
    """
    if options is None:
        return
    if not isinstance(options, dict):
        raise InvalidArgument(f"{name}: reset(options={shown(options)}) is neither a dict nor None")
    known: tuple[str, ...] | None = metadata.get("reset_options")
    unknown = [] if known is None else [key for key in options if key not in known]
    if unknown:
        allowed = [*(known or ()), *also]
        hint = nearest(unknown[0], allowed) if isinstance(unknown[0], str) else ""
        there_are = ", ".join(map(repr, allowed)) or "none"
        raise InvalidArgument(
            f"{name}: reset takes no option {shown(unknown[0])}{hint}; it takes {there_are}"
        )


def check_render_mode(name: str, env: Any, mode: Any) -> None:
    """Raise ``InvalidArgument`` for a render mode that is not in the metadata of ``env``, a class or an instance."""
    metadata = getattr(env, "metadata", None)
    modes = metadata.get("render_modes") if isinstance(metadata, dict) else None
    if mode is not None and modes is not None and mode not in modes:
        raise InvalidArgument(
            f"{name}: render_mode={shown(mode)} is unknown; there are {', '.join(modes) or 'none'}"
        )


def call(
    name: str,
    constructor: Callable[..., Any],
    kwargs: Mapping[str, Any],
    *,
    fixed: Mapping[str, Any] | None = None,
    also: tuple[str, ...] = (),
) -> Any:
    """Call a constructor; an unknown or wrong argument raises :class:`InvalidArgument`.

    ``fixed`` arguments are passed too; users may not give them. ``also`` names arguments of other layers,
    which the error lists as allowed.
    """
    fixed = fixed or {}
    own, takes_any = _parameters(constructor)
    allowed = [*(known for known in own if known not in fixed), *also]
    for given in kwargs:
        if given not in allowed and not takes_any:
            if given in _FOR_SERVERS and "backend" in also:
                raise InvalidArgument(f"{name}: {given}= is for environments on servers; give backend= too")
            hint, known = nearest(given, allowed), ", ".join(allowed) or "none"
            raise InvalidArgument(f"{name} takes no argument {shown(given)}{hint}; it takes {known}")
    try:
        return constructor(**kwargs, **fixed)
    except EnvweaveError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{name}: {error}") from error


def _parameters(constructor: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of the constructor's parameters, and whether it takes any others."""
    try:
        return _known_parameters(constructor)
    except TypeError:  # an unhashable constructor cannot be cached
        return _known_parameters.__wrapped__(constructor)


@lru_cache(maxsize=256)  # reading a signature costs as much as making a small environment
def _known_parameters(constructor: Callable[..., Any]) -> tuple[list[str], bool]:
    try:
        known = inspect.signature(constructor).parameters.values()
    except ValueError:  # functions written in C may have no signature
        return [], True
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in known)
    return [one.name for one in known if one.kind in named], takes_any
