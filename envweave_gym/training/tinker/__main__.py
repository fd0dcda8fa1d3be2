"""``python -m envweave_gym.training.tinker --env ID``: trains a language model on an ID with Tinker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.training.options import demo_main, option
from envweave_gym.training.tinker.grpo import train
from envweave_gym.training.tinker.tinker_options import TinkerOptions

_DESCRIPTION = """Train a language model on an environment with Tinker, on the hosted service or a local server.

    python -m envweave_gym.training.tinker --env envweave/PickLetter-v0 --local
"""


@dataclass
class Options(TinkerOptions):
    """The command-line options."""

    env: str = option("envweave/PickLetter-v0", "ID of the environment")
    arguments: str = option("{}", "arguments of the environment, as a JSON object")
    held_out: str = option("{}", 'further arguments in evaluations, such as {"split": "test"}')


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidArgument(
            f'--{name} {shown(text)} is no JSON object; give one like \'{{"split": "test"}}\''
        )
    return value


def _train(options: Options) -> dict[str, Any]:
    arguments = _object("arguments", options.arguments)
    return train(options.env, options, arguments=arguments, held_out=_object("held-out", options.held_out))


main = demo_main(_train, Options, _DESCRIPTION)

if __name__ == "__main__":
    raise SystemExit(main())
