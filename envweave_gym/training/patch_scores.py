"""Scores patches for the issues of SWE-bench Lite without training: accepted ones, useless ones, or a model's."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

import envweave_gym
from envweave_gym.core.faults import Fault, NotAvailable
from envweave_gym.data.swebench_lite import SOURCE, Instance, instances
from envweave_gym.training.run_metrics import summary
from envweave_gym.training.tinker.demo_options import DemoOptions
from envweave_gym.training.tinker.grpo import Trainer

PATCHES = ("gold", "wrong", "model")
WRONG = """\
diff --git a/notes.txt b/notes.txt
new file mode 100644
--- /dev/null
+++ b/notes.txt
@@ -0,0 +1 @@
+I have read the issue.
"""
"""A patch that applies everywhere and resolves nothing."""


def score_patches(options: DemoOptions, kind: str) -> dict[str, Any]:
    """Try one patch of a kind for every issue of the split ``test``, print the rewards, and return the results.

    Raises ``NotAvailable`` after the table if a patch could not be tried: that says nothing about the patch.
    """
    options.export_data_folder()
    issues = instances(options.dataset.get("dataset", SOURCE.hub), "test")
    tried = _model_rewards(options, issues) if kind == "model" else _rewards(options, issues, kind)
    rewards = {issue.instance_id: reward for issue, reward in zip(issues, tried, strict=True)}
    mark = 1.0 if options.success_reward == "" else options.success_reward
    resolved = sum(reward == mark for reward in rewards.values())
    print(summary(f"{options.env_id}, {kind} patches, backend {options.backend}", rewards))
    lost = [reward for reward in rewards.values() if isinstance(reward, str)]
    print(f"resolved: {resolved} of {len(rewards) - len(lost)} tried, {len(lost)} lost")
    if lost:
        raise NotAvailable(f"{len(lost)} of {len(rewards)} patches could not be tried; the last: {lost[-1]}")
    return {"resolved": resolved, "issues": len(rewards), "rewards": rewards}


def _rewards(options: DemoOptions, issues: Iterable[Instance], kind: str) -> list[float | str]:
    """Return the reward of the patch for each issue, or the message of the fault where it could not be tried."""
    rewards: list[float | str] = []
    with closing(envweave_gym.make(options.env_id, **options.arguments, **options.backend_arguments)) as env:
        for index, issue in enumerate(issues):
            env.reset(seed=options.seed, options={"index": index})
            *_, info = step = env.step(f"```diff\n{issue.patch if kind == 'gold' else WRONG}```")
            fault = info.get("fault")
            rewards.append(fault.message if isinstance(fault, Fault) else float(step[1]))
    return rewards


def _model_rewards(options: DemoOptions, issues: Iterable[Instance]) -> list[float | str]:
    """Return the reward of the model's greedy patch for each issue, or the message of the fault."""
    if not (options.run or options.resume):
        options = replace(options, run=f"{options.demo}_scores")  # the records of a training stay as they are
    with Trainer(options.env_id, options, options.arguments, only_plays=True) as trainer:
        batch = trainer.play_greedily([{"index": index} for index, _ in enumerate(issues)])
    return [
        episode.fault.message if episode.fault else sum(one.reward for one in episode.trajectories.values())
        for episode in batch.episodes
    ]
