"""Typed environments: authors write methods with dataclasses or ``msgspec.Struct``, users get a ``gymnasium.Env``."""

from envweave_gym.typed.json_space import JsonOf as JsonOf
from envweave_gym.typed.models import from_model as from_model
from envweave_gym.typed.models import space_of as space_of
from envweave_gym.typed.models import to_model as to_model
from envweave_gym.typed.typed_env import TypedEnv as TypedEnv
