"""Demo that trains a language model with Tinker to resolve issues of SWE-bench Lite with patches, which tests decide.

    python -m envweave_gym.training.swebench_patch_tinker --score gold --data synthetic
    python -m envweave_gym.training.swebench_patch_tinker --num-envs 1 --episodes 0 --target-success-rate 0.5

Each reply is a unified diff. It is applied to the project, and the project's tests run in a container of the official
image, or in the sandbox of this machine (``--evaluation local``, as for ``--data synthetic``). ``--score`` trains
nothing: it tries one patch for every issue, the accepted one (``gold``), one that changes nothing of importance
(``wrong``) or the model's (``model``), and prints which of them the tests accept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from envweave_gym.containers.engine import engine
from envweave_gym.data.sources import SYNTHETIC
from envweave_gym.swebench.evaluation import TESTS_TIMEOUT_S
from envweave_gym.swebench.toy_image import build_toy_images
from envweave_gym.training.options import demo_main, option
from envweave_gym.training.patch_scores import PATCHES, score_patches
from envweave_gym.training.tinker.demo_options import DemoOptions, train_on_data


@dataclass
class Options(DemoOptions):
    """The command-line options of the patch demo, beyond those of every demo over a data set."""

    demo: ClassVar[str] = "swebench_patch"
    env_id: ClassVar[str] = "envweave/SWEBenchLitePatch-v0"
    held_out_split: ClassVar[str] = "dev"

    num_envs: int = option(1, "environments, each of which tries one patch at a time")
    group: int = option(4, "patches for one issue, whose rewards are compared")
    groups: int = option(2, "issues of each update")
    max_tokens: int = option(1024, "longest reply, in tokens")
    max_prompt_tokens: int = option(2048, "longest prompt, in tokens; the middle of a longer one is left out")
    episode_timeout: float = option(3600.0, "time of an episode in its environment, in seconds")
    eval_episodes: int = option(8, "held-out issues of an evaluation")
    score: str = option("", "gold, wrong or model: try one patch for every issue, and train nothing")
    evaluation: str = option(
        "", "docker or local: where patches are tried (default: docker, synthetic: local)"
    )
    timeout: float = option(TESTS_TIMEOUT_S, "longest run of an issue's tests, in seconds")
    reward: str = option("shaped", "shaped: parts for a patch that applies and repairs some tests, or binary")

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for an unknown ``--score``."""
        super().__post_init__()
        if self.score not in ("", *PATCHES):
            raise ValueError(f"--score {self.score} is unknown; give {', '.join(PATCHES)}, or leave it out")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``make`` besides the backend's; where patches are tried is only given if it was chosen."""
        chosen = {"evaluation": self.evaluation} if self.evaluation else {}
        limit = {"timeout": self.timeout} if self.timeout != TESTS_TIMEOUT_S else {}
        return {**self.dataset, "reward": self.reward, **chosen, **limit}


def train(options: Options) -> dict[str, Any]:
    """Train on the split ``test`` and evaluate on ``dev``, or only score patches; return the results."""
    if options.data == SYNTHETIC and options.evaluation == "docker":
        build_toy_images(engine())
    if options.score:
        return score_patches(options, options.score)
    return train_on_data(options)


main = demo_main(train, Options, __doc__ or "")

if __name__ == "__main__":
    raise SystemExit(main())
