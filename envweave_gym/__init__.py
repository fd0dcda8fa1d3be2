"""Any agentic environment is one ``gymnasium.make`` or ``pettingzoo.make`` away.

Importing this package registers its IDs, and those of every installed plug-in, with Gymnasium and PettingZoo.
The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from envweave_gym.core.module_aliases import alias_modules
from envweave_gym.registry.catalog import register_all

if TYPE_CHECKING:
    from envweave_gym import testing
    from envweave_gym.compat import examples
    from envweave_gym.compat.clients import (
        CodeAction,
        CodeObservation,
        CodeState,
        CodingEnv,
        EchoAction,
        EchoEnv,
        EchoObservation,
        StepResult,
        TypedClient,
    )
    from envweave_gym.compat.constructors import codeact_env, mcp_env
    from envweave_gym.compat.repl import CodeBlockResult, REPLAction, REPLEnv, REPLObservation, REPLState
    from envweave_gym.core.faults import (
        AtCapacity,
        EnvironmentCrashed,
        EnvweaveError,
        Fault,
        FaultKind,
        FaultStorm,
        InvalidAction,
        InvalidArgument,
        MissingExtra,
        NotAvailable,
        ResetNeeded,
        SessionLost,
        UnknownEnvironment,
    )
    from envweave_gym.core.protocols import state_of
    from envweave_gym.core.reply_parsing import parse_action
    from envweave_gym.core.spaces import Chat, Json, Unicode
    from envweave_gym.episode.emitter import Emitter
    from envweave_gym.episode.message import Message, message, messages_of
    from envweave_gym.episode.stream import (
        Event,
        EventKind,
        Request,
        RequestKind,
        Stream,
        metrics,
        reveal,
        stream_of,
        trainable,
    )
    from envweave_gym.providers.fleet import Fleet
    from envweave_gym.registry.catalog import EnvCard, cards
    from envweave_gym.registry.ids import make, register
    from envweave_gym.rewards.transforms import (
        CodeQuality,
        CodeSafety,
        Composite,
        MathAnswer,
        RewardFailed,
        RewardTransform,
        TaskCompletion,
        math_transform,
        safe_transform,
    )
    from envweave_gym.sandbox import Execution, Limits, Sandbox, Setup
    from envweave_gym.tools import Tool, ToolError, ToolRegistry
    from envweave_gym.typed import JsonOf, TypedEnv, from_model, space_of, to_model
    from envweave_gym.vector.epochs import Epoch, epoch
    from envweave_gym.vector.native import NativeVectorEnv, NoNativeForm
    from envweave_gym.wrappers import AECStream, Autoreset, NumericInfo, ParallelStream, RequestStream
    from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

__version__ = "0.1.0"

_HOMES = {
    "registry.catalog": "EnvCard cards",
    "compat.clients": "CodeAction CodeObservation CodeState CodingEnv EchoAction EchoEnv EchoObservation "
    "StepResult TypedClient",
    "compat.constructors": "codeact_env mcp_env",
    "vector.epochs": "Epoch epoch",
    "core.faults": "AtCapacity EnvironmentCrashed EnvweaveError Fault FaultKind FaultStorm InvalidAction "
    "InvalidArgument MissingExtra "
    "NotAvailable ResetNeeded SessionLost UnknownEnvironment",
    "registry.ids": "make register",
    "wrappers.turn_based_parallel": "TurnBasedParallel",
    "core.reply_parsing": "parse_action",
    "core.protocols": "state_of",
    "providers.fleet": "Fleet",
    "compat.repl": "CodeBlockResult REPLAction REPLEnv REPLObservation REPLState",
    "rewards.transforms": "CodeQuality CodeSafety Composite MathAnswer RewardFailed RewardTransform "
    "TaskCompletion math_transform safe_transform",
    "core.spaces": "Chat Json Unicode",
    "sandbox": "Execution Limits Sandbox Setup",
    "episode.emitter": "Emitter",
    "episode.message": "Message message messages_of",
    "episode.stream": "Event EventKind Request RequestKind Stream metrics reveal stream_of trainable",
    "tools": "Tool ToolError ToolRegistry",
    "typed": "JsonOf TypedEnv from_model space_of to_model",
    "vector.native": "NativeVectorEnv NoNativeForm",
    "wrappers": "AECStream Autoreset NumericInfo ParallelStream RequestStream",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = {"examples": "compat.examples", "testing": "testing"}

__all__ = [
    "AECStream",
    "AtCapacity",
    "Autoreset",
    "Chat",
    "CodeAction",
    "CodeBlockResult",
    "CodeObservation",
    "CodeQuality",
    "CodeSafety",
    "CodeState",
    "CodingEnv",
    "Composite",
    "EchoAction",
    "EchoEnv",
    "EchoObservation",
    "Emitter",
    "EnvCard",
    "EnvironmentCrashed",
    "EnvweaveError",
    "Epoch",
    "Event",
    "EventKind",
    "Execution",
    "Fault",
    "FaultKind",
    "FaultStorm",
    "Fleet",
    "InvalidAction",
    "InvalidArgument",
    "Json",
    "JsonOf",
    "Limits",
    "MathAnswer",
    "Message",
    "MissingExtra",
    "NativeVectorEnv",
    "NoNativeForm",
    "NotAvailable",
    "NumericInfo",
    "ParallelStream",
    "REPLAction",
    "REPLEnv",
    "REPLObservation",
    "REPLState",
    "Request",
    "RequestKind",
    "RequestStream",
    "ResetNeeded",
    "RewardFailed",
    "RewardTransform",
    "Sandbox",
    "SessionLost",
    "Setup",
    "StepResult",
    "Stream",
    "TaskCompletion",
    "Tool",
    "ToolError",
    "ToolRegistry",
    "TurnBasedParallel",
    "TypedClient",
    "TypedEnv",
    "Unicode",
    "UnknownEnvironment",
    "__version__",
    "cards",
    "codeact_env",
    "epoch",
    "examples",
    "from_model",
    "make",
    "math_transform",
    "mcp_env",
    "message",
    "messages_of",
    "metrics",
    "parse_action",
    "register",
    "register_all",
    "reveal",
    "safe_transform",
    "space_of",
    "state_of",
    "stream_of",
    "testing",
    "to_model",
    "trainable",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = importlib.import_module(f"envweave_gym.{_MODULES[name]}")
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(f"envweave_gym.{_HOME_OF[name]}"), name)
    else:
        raise AttributeError(f"module 'envweave_gym' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# The names of older documents, and of typed clients before they were moved.
alias_modules(
    {f"{__name__}.{old}": f"{__name__}.compat.{old}" for old in ("clients", "envtorch", "examples", "repl")}
)
register_all()
