"""Names that the root of the package had, with the modules that have them now; read only for a name that is missing."""

from __future__ import annotations

HOMES = {
    "compat.clients": (
        "CodeAction CodeObservation CodeState CodingEnv EchoAction EchoEnv EchoObservation StepResult TypedClient"
    ),
    "compat.constructors": "codeact_env mcp_env",
    "compat.repl": "CodeBlockResult REPLAction REPLEnv REPLObservation REPLState",
    "core": "arguments faults protocols seeding spaces",
    "core.faults": "AtCapacity EnvironmentCrashed FaultStorm MissingExtra",
    "core.spaces": "Chat",
    "episode": "stream",
    "episode.stream": "RequestKind",
    "registry": "catalog",
    "rewards": (
        "CodeQuality CodeSafety Composite MathAnswer RewardFailed RewardTransform TaskCompletion math_transform "
        "safe_transform"
    ),
    "sandbox": "Execution Limits Sandbox Setup",
    "tools": "Tool ToolError ToolRegistry",
    "typed": "JsonOf TypedEnv from_model space_of to_model",
    "vector.epochs": "Epoch",
    "vector.native": "NativeVectorEnv NoNativeForm",
    "wrappers": "AECStream Autoreset NumericInfo ParallelStream RequestStream",
    "wrappers.turn_based_parallel": "TurnBasedParallel",
}


def hint(name: str) -> str:
    """Return ``"; it is in envweave_gym.wrappers: …"`` for a former name of the root, or ``""``."""
    for home, names in HOMES.items():
        if name in names.split():
            return f"; it is in envweave_gym.{home}: from envweave_gym.{home} import {name}"
    return ""
