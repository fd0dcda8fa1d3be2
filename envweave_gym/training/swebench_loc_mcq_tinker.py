"""Demo that trains a language model with Tinker to find the file that resolves an issue of SWE-bench Lite.

    python -m envweave_gym.training.swebench_loc_mcq_tinker --smollm --data synthetic
    python -m envweave_gym.training.swebench_loc_mcq_tinker --num-envs 8 --episodes 0 --target-success-rate 0.7

The prompt is an issue of a real project with ``--options`` files of its repository, and the reply a letter. Issues
are long, so the middle of a prompt is left out beyond ``--max-prompt-tokens``: its end, the files, always stays. It
trains on the split ``test`` (300 issues) and is evaluated, greedily, on 22 issues of ``dev``, which has other projects.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

from envweave_gym.data.swebench_lite import SOURCE, instances
from envweave_gym.training.options import demo_main, option
from envweave_gym.training.tinker.demo_options import DemoOptions, train_on_data


@dataclass
class Options(DemoOptions):
    """The command-line options of the localisation demo, beyond those of every demo over a data set."""

    demo: ClassVar[str] = "swebench_loc_mcq"
    env_id: ClassVar[str] = "envweave/SWEBenchLiteLocMCQ-v0"
    held_out_split: ClassVar[str] = "dev"

    max_tokens: int = option(8, "longest reply, in tokens")
    groups: int = option(8, "issues of each update")
    eval_episodes: int = option(22, "held-out issues of an evaluation")
    options: int = option(4, "files to choose from", least=2, most=26)
    mask_paths: bool = option(False, "replace the names of files in issues, some of which name the right one")
    reward: str = option("dense", "dense: 0.1 for a wrong letter and 0 for none, or sparse: 0 for both")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``make`` besides the backend's."""
        return {
            **self.dataset,
            "options": self.options,
            "mask_paths": self.mask_paths,
            "reward": self.reward,
        }


def train(options: Options) -> dict[str, Any]:
    """Train on the split ``test``, evaluate on ``dev``, and return the results."""
    return train_on_data(options, held_out_resets(options))


def held_out_resets(options: Options) -> list[dict[str, Any]]:
    """Return reset options for the held-out issues that have wrong options.

    Those come from other issues of the repository: of one repository ``dev`` has a single issue. Data that only a
    server has is not looked into.
    """
    if not options.has_splits or "://" in options.backend:
        return []
    options.export_data_folder()
    issues = instances(options.dataset.get("dataset", SOURCE.hub), options.held_out_split)
    known = Counter(issue.repo for issue in issues)
    return [{"index": index} for index, issue in enumerate(issues) if known[issue.repo] > 1]


main = demo_main(train, Options, __doc__ or "")

if __name__ == "__main__":
    raise SystemExit(main())
