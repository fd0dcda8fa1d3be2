"""Demo that trains a language model on the word problems of GSM8K with Tinker: text replies, exact reward.

    python -m envweave_gym.training.gsm8k_tinker --smollm --data synthetic
    python -m envweave_gym.training.gsm8k_tinker --num-envs 8      # the hosted service, with TINKER_API_KEY

A reply ends with ``#### `` and a number, which is right (1.0) or wrong; the form alone earns ``--format-reward``, so
that a model which never solves a problem has something to begin with. It trains on the split ``train`` and is
evaluated, greedily, on the split ``test``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from envweave_gym.training.options import demo_main, option
from envweave_gym.training.tinker.demo_options import DemoOptions, train_on_data


@dataclass
class Options(DemoOptions):
    """The command-line options of the GSM8K demo, beyond those of every demo over a data set."""

    demo: ClassVar[str] = "gsm8k"
    env_id: ClassVar[str] = "envweave/GSM8K-v0"
    held_out_split: ClassVar[str] = "test"

    max_tokens: int = option(256, "longest reply, in tokens")
    groups: int = option(8, "problems of each update")
    hint_turns: int = option(0, "1: a wrong first reply gets a hint and a second try", least=0, most=1)
    format_reward: float = option(0.1, "reward of a reply in the right form, right or wrong", least=0)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``make`` besides the backend's."""
        return {**self.dataset, "hint_turns": self.hint_turns, "reward_on_format": self.format_reward}


train = train_on_data
main = demo_main(train, Options, __doc__ or "")

if __name__ == "__main__":
    raise SystemExit(main())
