"""An adapter from a class with typed methods to a Gymnasium environment."""

from __future__ import annotations

import copy
import inspect
from typing import Any, get_args, get_origin, get_type_hints

import gymnasium as gym
import msgspec
import numpy as np

from envweave_gym.core.arguments import check_render_mode
from envweave_gym.core.call_results import as_flag
from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.reply_parsing import require_text
from envweave_gym.episode.emitter import Emitter
from envweave_gym.typed.hints import fields_of, is_model, name_of
from envweave_gym.typed.models import codec_of, space_of
from envweave_gym.typed.scalars import MISFITS, Codec

OUTCOME = frozenset({"reward", "done", "terminated", "truncated"})
"""Fields of an observation that describe the outcome of a step; the observation space leaves them out."""


class TypedEnv(Emitter, gym.Env[dict[str, Any], dict[str, Any]]):
    """Gymnasium environment that plays an instance of a plain class with typed methods.

    ::

        class Guess:
            def reset(self, seed: int) -> Hint: ...
            def step(self, action: Number) -> Hint: ...

        env = TypedEnv(Guess())                  # or TypedEnv(Guess, limit=10): it calls Guess(limit=10)
        make_guess = partial(TypedEnv, Guess)    # for an ID: EnvCard(gym="mypackage.envs:make_guess", …)

    - The models are read from the hints of ``step`` (and ``reset``); a class without hints defines
      ``action_model = …`` and ``observation_model = …``.
    - ``reset`` takes those of ``seed`` and ``options`` that it names, and returns an observation or
      ``(observation, info)``. The seed is always an int: if the caller gives none, it is drawn from the last
      given one, so that every episode can be repeated. A class that declares
      ``np_random: np.random.Generator`` finds Gymnasium's generator there at each reset.
    - ``step`` returns an observation whose fields ``reward`` and ``done`` (or ``terminated``, ``truncated``)
      describe the outcome and are left out of the observation space; without them the reward is 0 and the
      episode goes on. Or it returns ``(observation, reward, terminated, truncated, info)``.
    - Optional: ``state`` (a model or a dict; method, property or attribute) is shown by
      :func:`envweave_gym.state_of`; ``parse_action(text)`` returns an action model; ``render``, ``close``,
      ``metadata`` and :class:`envweave_gym.Emitter` work as in any environment.
    """

    def __init__(self, core: Any, *, render_mode: str | None = None, **kwargs: Any) -> None:
        """Adapt ``core``: an instance, or a class that is called with ``kwargs``."""
        if kwargs and not isinstance(core, type):
            raise InvalidArgument(
                f"TypedEnv({shown(core)}) is built already and takes no {', '.join(kwargs)}"
            )
        self.core = core(**kwargs) if isinstance(core, type) else core
        self.name = type(self.core).__name__
        self.action_model, self.observation_model = _models_of(self.core)
        self._outcome = frozenset(OUTCOME & fields_of(self.observation_model).keys())
        self.action_space = space_of(self.action_model)
        self.observation_space = copy.deepcopy(self._observations.space)
        drawn = ["ansi"] if hasattr(self.core, "render") else []
        without_options = {} if self._takes("options") else {"reset_options": ()}
        self.metadata = {"render_modes": drawn, **without_options, **getattr(self.core, "metadata", {})}
        check_render_mode(self.name, self, render_mode)
        self.render_mode = render_mode

    @property
    def _observations(self) -> Codec:
        return codec_of(self.observation_model, self._outcome)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Call the author's ``reset`` with the seed and the options, if it takes them; convert the observation."""
        super().reset(seed=seed)
        given: dict[str, Any] = {}
        if self._takes("seed"):
            given["seed"] = int(self.np_random.integers(2**31) if seed is None else seed)
        if self._takes("options"):
            given["options"] = options
        if any("np_random" in inspect.get_annotations(kind) for kind in type(self.core).__mro__):
            self.core.np_random = self.np_random
        result = self.core.reset(**given)
        observation, info = result if isinstance(result, tuple) else (result, {})
        return self._observations.member(observation), dict(info)

    def _takes(self, argument: str) -> bool:
        """Return whether the author's ``reset`` has a parameter of this name."""
        return argument in inspect.signature(self.core.reset).parameters

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Convert the action, call the author's ``step``, and return Gymnasium's five values."""
        result = self.core.step(self._typed(action))
        if isinstance(result, tuple):
            observation, reward, terminated, truncated, info = self._checked_result(result)
        else:
            end = {name: getattr(result, name, None) for name in self._outcome}
            observation, reward, info = result, end.get("reward"), {}
            terminated, truncated = end.get("done") or end.get("terminated"), end.get("truncated")
        member = self._observations.member(observation)
        ends = as_flag(self.name, "terminated", terminated), as_flag(self.name, "truncated", truncated)
        return member, float(reward or 0.0), *ends, dict(info)

    def _typed(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise InvalidAction(f"{self.name}: action {shown(action)} is not in {self.action_space}")
        try:
            return codec_of(self.action_model).typed(action)
        except MISFITS as error:
            raise InvalidAction(f"{self.name}: action {shown(action)}: {error}") from error

    def _checked_result(self, result: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(result) != 5:
            raise ValueError(
                f"{self.name}.step gave {len(result)} values; it gives an observation, or "
                "(observation, reward, terminated, truncated, info)"
            )
        return result

    def parse_action(self, text: str, agent: str | None = None) -> dict[str, Any]:
        """Parse a model's reply: by the class's own ``parse_action``, or as JSON of the action model."""
        require_text(text)
        try:
            return codec_of(self.action_model).member(self._read(text))
        except (*MISFITS, RecursionError) as error:
            raise InvalidAction(f"{shown(text)} is not a {self.action_model.__name__}: {error}") from error

    def _read(self, text: str) -> Any:
        if hasattr(self.core, "parse_action"):
            return self.core.parse_action(text)
        return msgspec.json.decode(text, type=self.action_model, dec_hook=_array)

    def episode_state(self) -> dict[str, Any]:
        """Return the ``state`` of the class, as JSON."""
        state = getattr(self.core, "state", None)
        state = state() if callable(state) else state
        return {} if state is None else jsonable(msgspec.to_builtins(state, str_keys=True, enc_hook=jsonable))

    def listen(self) -> Emitter:
        """Collect the events of the class, if it is an :class:`Emitter` itself."""
        return self.core.listen() if isinstance(self.core, Emitter) else super().listen()

    def render(self) -> Any:
        """Return the result of the class's own ``render``; ``None`` without a render mode."""
        return None if self.render_mode is None else self.core.render()

    def close(self) -> None:
        """Call the class's own ``close``, if it has one."""
        if hasattr(self.core, "close"):
            self.core.close()


def _array(kind: Any, value: Any) -> Any:
    """Convert JSON to an array, as a decoding hook of msgspec; the space checks the numbers afterwards.

    Raise ``ValueError`` for any other type ``kind``.
    """
    if (get_origin(kind) or kind) is np.ndarray:
        return np.asarray(value)
    raise ValueError(f"{name_of(kind)} cannot be read from JSON")


def _models_of(core: Any) -> tuple[type, type]:
    """Return the models of actions and observations: class attributes, or the hints of ``step`` and ``reset``."""
    name = type(core).__name__
    for method in ("reset", "step"):
        if not callable(getattr(core, method, None)):
            raise InvalidArgument(f"TypedEnv({name}): it has no method {method}")
    action, observation = getattr(core, "action_model", None), getattr(core, "observation_model", None)
    if action is None or observation is None:
        step, reset = _hints(core.step, name), _hints(core.reset, name)
        first = next(iter(inspect.signature(core.step).parameters), "")
        action = action or step.get(first)
        observation = observation or _first(step.get("return")) or _first(reset.get("return"))
    return _checked("action", action, name), _checked("observation", observation, name)


def _checked(role: str, model: Any, name: str) -> type:
    if is_model(model):
        return model
    found = "not declared" if model is None else f"{name_of(model)}, which is no dataclass or msgspec.Struct"
    raise InvalidArgument(
        f"TypedEnv({name}): its {role} is {found}; write def step(self, action: MyAction) -> MyObservation, "
        f"or {role}_model = … in the class"
    )


def _hints(method: Any, name: str) -> dict[str, Any]:
    try:
        return get_type_hints(method, include_extras=True)
    except NameError as error:
        raise InvalidArgument(f"TypedEnv({name}): {error}; define its models beside it") from None


def _first(hint: Any) -> Any:
    """Return the observation type in the return annotation of ``reset`` or ``step``, which may be a tuple."""
    return get_args(hint)[0] if get_origin(hint) is tuple else hint
