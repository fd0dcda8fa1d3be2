"""Demo that trains a language model on GSM8K with four options with Tinker: replies of one letter.

    python -m envweave_gym.training.gsm8k_mcq_tinker --smollm --data synthetic
    python -m envweave_gym.training.gsm8k_mcq_tinker --num-envs 8 --episodes 800      # the hosted service

The right option earns 1.0, a wrong one 0.1 (``--reward sparse``: 0.0), a reply without a letter nothing. A reply has
few tokens and chance finds one of four, so rewards differ within groups from the start: the shortest way to see
whether all parts work together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from envweave_gym.training.options import demo_main, option
from envweave_gym.training.tinker.demo_options import DemoOptions, train_on_data


@dataclass
class Options(DemoOptions):
    """The command-line options of the GSM8K-MCQ demo, beyond those of every demo over a data set."""

    demo: ClassVar[str] = "gsm8k_mcq"
    env_id: ClassVar[str] = "envweave/GSM8KMCQ-v0"
    held_out_split: ClassVar[str] = "test"

    max_tokens: int = option(8, "longest reply, in tokens")
    groups: int = option(8, "problems of each update")
    reward: str = option("dense", "dense: 0.1 for a wrong letter and 0 for none, or sparse: 0 for both")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``make`` besides the backend's."""
        return {**self.dataset, "reward": self.reward}


train = train_on_data
main = demo_main(train, Options, __doc__ or "")

if __name__ == "__main__":
    raise SystemExit(main())
