"""The training loop: groups of episodes of the same task, group-centred advantages, updates of LoRA adapters.

Each update samples ``groups`` tasks ``group`` times, and trains on how much better than the others of its group each
episode was. Lost episodes are played again; a group goes on without those that stay lost, and one whose rewards are
equal teaches nothing and is left out. All seeds are derived from ``--seed``, so with a deterministic server two runs
end with the same adapter, also if one of them was interrupted.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from envweave_gym.training.tinker.advantages import training_rows
from envweave_gym.training.tinker.datums import TrainingRow
from envweave_gym.training.tinker.episodes import Episode, Policies, Task
from envweave_gym.training.tinker.interrupts import interrupt_at_end
from envweave_gym.training.tinker.rollouts import EpisodeBatch
from envweave_gym.training.tinker.sampling import PromptRequests, SharedRequest, seed_of
from envweave_gym.training.tinker.tinker_options import TinkerOptions
from envweave_gym.training.tinker.training_run import TrainingRun
from envweave_gym.training.tinker.transcripts import Transcripts
from envweave_gym.training.tinker.update_metrics import episode_metrics, step_metrics

NEWEST_WEIGHT = 0.1
"""Weight of the newest update in the moving average of success, which is the plain mean of the first updates."""
FIRST_UPDATES = round(1 / NEWEST_WEIGHT)
"""Updates before success in training can reach a target, for as many as the average is of."""
TEMPERATURE_WARNING = (
    "warning: with a --temperature other than 1 the gradient is biased, as servers return the log-probabilities of "
    "temperature 1, which the importance ratio takes for those of the samples"
)
_HELD_OUT = 1 << 30
"""Seeds of held-out tasks are from here on, those of training below."""


class Trainer(TrainingRun):
    """GRPO on one ID; a context manager that closes environments and connection.

    Subclasses may override its methods and attributes without an underscore.
    """

    curves = ("reward", "success", "held_out_success", "kl")
    shares_prompts = False
    """Whether equal prompts of later turns in a group share a request, too; for games with few situations."""

    def run(self) -> dict[str, Any]:
        """Train to the end, resuming from the last checkpoint when the server was lost; return the results."""
        if self.options.temperature != 1:
            self._report(TEMPERATURE_WARNING)
        return super().run()

    def _make_updates(self) -> None:
        if not self.log.rows:
            self._write({"episodes": 0, **self.evaluate()})
        while not self.is_done():
            self._one_update()

    def is_done(self) -> bool:
        """Return whether the target is reached, or all episodes were played."""
        options = self.options
        if options.target_success_rate:
            success = self._success if self.updates >= FIRST_UPDATES else None  # not that of one lucky update
            reached = self.log.rows[-1].get("held_out_success") if options.eval_every else success
            if reached is not None and reached >= options.target_success_rate:
                return True
        return bool(options.episodes) and self.episodes >= options.episodes

    def _one_update(self) -> None:
        """Play the episodes of an update, train on them, evaluate and save where that is due."""
        options, number = self.options, self.updates
        started = self.log.seconds
        tasks = self._tasks(number)
        episodes = self.episodes + len(tasks)
        batch = self._training.play(tasks, self.policies(), self.bar.update)
        rows = self._by_learner(self.training_rows(batch.episodes, number))
        sampled = self.log.seconds
        rate = options.rate_at(number)
        values: dict[str, Any] = {}
        try:
            with interrupt_at_end(self._report, "finishing the update"):
                self._is_consistent = False
                steps = [self.learners[name].update(part, rate) for name, part in rows.items() if part]
                self.updates += 1
                self.transcripts.update = self.updates
                values = {
                    "episodes": episodes,
                    **episode_metrics(batch, self.success_reward),
                    **step_metrics([step for one in steps for step in one], options),
                    "learning_rate": rate,
                    "sample_seconds": round(sampled - started, 3),
                    "train_seconds": round(self.log.seconds - sampled, 3),
                }
                self._note(batch, values)
            if options.eval_every and (
                self.updates % options.eval_every == 0 or 0 < options.episodes <= episodes
            ):
                values |= self.evaluate()
        except KeyboardInterrupt:
            if values:
                self._write(values)
            raise
        self._write(values)
        self.bar.set_postfix(success=f"{self._success:.2f}", reward=f"{values.get('reward', 0.0):.2f}")
        if options.save_every and self.updates % options.save_every == 0:
            self._checkpoint()
        self._reconnects = 0

    def _note(self, batch: EpisodeBatch, values: Mapping[str, Any]) -> None:
        """Note the success of an update, what it played, and what there is to report about it."""
        if "success" in values:  # else all episodes were lost, which is no failure of the policy
            before = sum("success" in row for row in self.log.rows)
            weight = max(NEWEST_WEIGHT, 1 / (before + 1))
            self._success += weight * (values["success"] - self._success)
        self._notices.faults(f"update {self.updates}", batch)
        self._notices.trained(values.get("trained_rows", 0), values)
        self.transcripts.add(f"update {self.updates}", batch.episodes[: self.options.group])

    def _write(self, values: Mapping[str, Any]) -> None:
        """Write the metrics of the last update, which is whole with them."""
        with interrupt_at_end(self._report, "writing the metrics"):
            self.log.write(**values)
            self._is_consistent = True

    def _by_learner(self, rows: dict[str, list[TrainingRow]]) -> dict[str, list[TrainingRow]]:
        if self.options.adapters == "role":
            return {agent: rows.get(agent, []) for agent in self._agents}
        return {"all": [row for agent in self._agents for row in rows.get(agent, [])]}

    def _tasks(self, update: int) -> list[Task]:
        seed, group = self.options.seed, self.options.group
        tasks: list[Task] = []
        for index in range(self.options.groups_after(self.episodes)):
            key = ("train", seed, update, index)
            first_request = SharedRequest(group, seed_of(*key, "opening"))
            later_requests = PromptRequests(group, *key) if self.shares_prompts else None
            task_seed = self.task_seed(update, index)
            tasks += [
                Task(key, index, member, task_seed, first_request, later_requests) for member in range(group)
            ]
        return tasks

    def task_seed(self, update: int, index: int) -> int:
        """Return the seed with which the members of a group reset; may be overridden."""
        return seed_of("task", self.options.seed, update, index) % _HELD_OUT

    def policies(self, temperature: float | None = None) -> Policies:
        """Return samplers of the newest weights, by default with the temperature of training."""
        assert self.prompts is not None, "the adapters are created first"
        options, stop = self.options, self.prompts.stop_tokens
        temperature = options.temperature if temperature is None else temperature
        samplers = {name: one.sampler(stop, temperature) for name, one in self.learners.items()}
        return Policies(
            self.prompts,
            lambda agent: samplers[agent if agent in samplers else "all"],
            self._prompt_limit(),
        )

    def training_rows(self, episodes: Sequence[Episode], update: int) -> dict[str, list[TrainingRow]]:
        """Return the rows of each agent with their advantages, for the update of this number; may be overridden."""
        return training_rows(episodes, self.options.entropy)

    def _prompt_limit(self) -> int:
        """Return the tokens to which first prompts are cut, so that a reply fits the context too; 0 for no limit."""
        context, limit = self.connection.context_of(self.model), self.options.max_prompt_tokens
        fitting = max(1, context - self.options.max_tokens) if context else 0
        return min(limit, fitting) if limit and fitting else limit or fitting

    def play_greedily(self, resets: Sequence[Mapping[str, Any]]) -> EpisodeBatch:
        """Play an episode for each mapping of reset options with the current weights, without training.

        The episodes are in ``greedy.html``; the records of a training in the same folder stay as they are.
        """
        tasks = [
            Task(("greedy", index), index, 0, self.options.seed, SharedRequest(1, index), options=options)
            for index, options in enumerate(resets)
        ]
        from tqdm import tqdm

        page = Transcripts(f"{self._env_id}, {self.model}", self.options.folder / "greedy.html")
        with tqdm(total=len(tasks), unit="episode", desc=self._env_id) as self.bar:
            self._open_learners()
            batch = self._training.play(tasks, self.policies(temperature=0.0), self.bar.update)
            for options, episode in zip(resets, batch.episodes, strict=True):
                page.add(f"greedy, {dict(options)}", [episode])
        page.write(resumable=False)
        self._status = "success"
        return batch

    def evaluate(self) -> dict[str, float]:
        """Play held-out tasks greedily, and return the success rate and the mean reward."""
        options = self.options
        if not options.eval_every:
            return {}
        resets = itertools.cycle(self._held_out_resets)
        tasks = [
            Task(("held out", index), index, 0, _HELD_OUT + index, SharedRequest(1, index), options=reset)
            for index, reset in zip(range(options.eval_episodes), resets, strict=False)
        ]
        batch = self._held_out.play(tasks, self.policies(temperature=0.0))
        self._notices.faults("held out", batch)
        self.transcripts.add("held out", batch.episodes)
        values = episode_metrics(batch, self.success_reward)
        return {f"held_out_{name}": values[name] for name in ("success", "reward") if name in values}


def train(
    env_id: str,
    options: TinkerOptions,
    *,
    arguments: Mapping[str, Any] | None = None,
    held_out: Mapping[str, Any] | None = None,
    held_out_resets: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Train a language model on an ID, and return the results.

    ``arguments`` go to ``make``, and ``held_out`` too in evaluations, such as ``{"split": "test"}``. Evaluations use
    ``held_out_resets`` in turn as the options of their resets, such as the indices of some tasks.
    """
    with Trainer(env_id, options, arguments, held_out, held_out_resets) as trainer:
        return trainer.run()
