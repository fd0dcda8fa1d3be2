"""The training loop: groups of episodes of the same task, group-centred advantages, updates of LoRA adapters.

Each update samples ``groups`` tasks ``group`` times, and trains on how much better than the others of its group each
episode was. Lost episodes are played again; a group goes on without those that stay lost, and one whose rewards are
equal teaches nothing and is left out. All seeds are derived from ``--seed``, so with a deterministic server two runs
end with the same adapter, also if one of them was interrupted.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import envweave_gym
from envweave_gym.chat import ChatGame, ChatRules
from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable, need, shown
from envweave_gym.training.run_lock import RunLock
from envweave_gym.training.run_metrics import NotWritten, RunMetrics, summary
from envweave_gym.training.tinker.advantages import training_rows
from envweave_gym.training.tinker.connection import Connection, ServerLost
from envweave_gym.training.tinker.datums import TrainingRow
from envweave_gym.training.tinker.episodes import Episode, Policies, Task
from envweave_gym.training.tinker.interrupts import interrupt_at_end
from envweave_gym.training.tinker.learner import Learner
from envweave_gym.training.tinker.local_server import LocalServer
from envweave_gym.training.tinker.notices import Notices
from envweave_gym.training.tinker.prompts import Prompts
from envweave_gym.training.tinker.rollouts import Played, Rollouts
from envweave_gym.training.tinker.run_state import FILE, RunState, defaults_of, settings_of
from envweave_gym.training.tinker.sampling import PromptRequests, SharedRequest, seed_of
from envweave_gym.training.tinker.tinker_options import DEFAULT_MODEL, SMOLLM, TinkerOptions
from envweave_gym.training.tinker.transcripts import Transcripts
from envweave_gym.training.tinker.update_metrics import of_episodes, of_steps, problems
from envweave_gym.training.tinker.waiting import in_time, print_line

TINY = "envweave/tiny"
LOCAL_MODELS = {TINY: "--tiny", SMOLLM: "--smollm"}
"""The base models of ``--local``, with the option of the server for each."""
MOST_LOSSES = 5
"""Times in a row that the server may be lost without an update in between."""
STOP_S = 10.0
"""Time for a checkpoint after Ctrl-C."""
AVERAGED = 0.1
"""Weight of the newest update in the moving average of success."""
BIASED = (
    "warning: with a --temperature other than 1 the gradient is biased, as servers return the log-probabilities of "
    "temperature 1, which the importance ratio takes for those of the samples"
)
_HELD_OUT = 1 << 30
"""Seeds of held-out tasks are from here on, those of training below."""


class Trainer:
    """A run on one ID; a context manager that closes environments and connection.

    Subclasses may override its methods and attributes without an underscore.
    """

    curves: tuple[str, ...] = ("reward", "success", "held_out_success", "kl")
    """Metrics that are drawn."""
    shares_prompts = False
    """Whether equal prompts of later turns in a group share a request, too; for games with few situations."""

    def __init__(
        self,
        env_id: str,
        options: TinkerOptions,
        arguments: Mapping[str, Any] | None = None,
        held_out: Mapping[str, Any] | None = None,
        held_out_resets: Sequence[Mapping[str, Any]] = (),
        *,
        only_plays: bool = False,
    ) -> None:
        """Check options, environment and server; the arguments are those of :func:`train`.

        ``only_plays`` is for :meth:`play_greedily` alone, which plays a policy that other settings have trained, too.
        """
        self.options, self._env_id = options, env_id
        self._held_out_resets = held_out_resets or [{}]
        need("tqdm", "tinker", "the progress bar")
        self.learners: dict[str, Learner] = {}
        self.prompts: Prompts | None = None
        self.bar: Any = None
        self._losses = 0
        self._is_whole = False
        """Whether adapters and metrics are those of the last update, not in the middle of the next one."""
        self._agents: list[str] = []
        self._status = "errored"
        self._exit = contextlib.ExitStack()
        settings = settings_of(options, env_id=env_id, arguments=arguments or {}, held_out=held_out or {})
        self.state = RunState(settings=settings)
        with contextlib.ExitStack() as opening:
            lock = opening.enter_context(RunLock(options.folder))
            self.log = RunMetrics(options.folder, self.curves, resume=options.resume, lock=lock)
            if options.resume:
                defaults = defaults_of(options)
                self.state = RunState.load(options.folder, settings, defaults=defaults, only_plays=only_plays)
                self.state.settings = settings
            self.updates, self._success = self.state.update, self.state.success
            self.connection = Connection(
                options.base_url,
                local=self._local_server(opening),
                report=self._report,
                answer_s=options.answer_timeout,
            )
            opening.callback(self._close_connection)
            self.model = self.connection.choose_model(options.model, DEFAULT_MODEL)
            self._training = self._rollouts(opening, {**(arguments or {})})
            self._held_out = (
                self._rollouts(opening, {**(arguments or {}), **held_out}) if held_out else self._training
            )
            self.transcripts = Transcripts(
                f"{env_id}, {self.model}", options.folder / "transcripts.html", resume=options.resume
            )
            self._notices = Notices(self._report, self.transcripts)
            self._exit = opening.pop_all()

    def _local_server(self, opening: contextlib.ExitStack) -> LocalServer | None:
        """Start the local server, whose checkpoints are in the folder of the run."""
        if not self.options.local:
            return None
        name = self.options.model or TINY
        if name not in LOCAL_MODELS:
            there_are = " and ".join(LOCAL_MODELS)
            raise InvalidArgument(f"--local has no model {shown(name)}; there are {there_are}")
        arguments = [LOCAL_MODELS[name], *["--deterministic"] * self.options.deterministic]
        folder = self.options.folder / "checkpoints"
        return opening.enter_context(LocalServer(*arguments, folder=folder, report=self._report))

    def _rollouts(self, opening: contextlib.ExitStack, arguments: dict[str, Any]) -> Rollouts:
        """Return a pool of environments, of which the first is made now, to see what it is."""
        options = self.options

        rules = ChatRules(options.max_turns, options.invalid_replies, options.invalid_reward)

        def make() -> ChatGame:
            env = envweave_gym.make(self._env_id, **{**options.backend_arguments, **arguments})
            return ChatGame(env, rules, instruction=options.instruction)

        first = make()
        unused = [first]
        opening.callback(lambda: [game.close() for game in unused])

        def take() -> ChatGame:
            try:
                return unused.pop()
            except IndexError:
                return make()

        self._agents = list(first.roles)
        if not options.instruction:
            first.check()
        pool = Rollouts(
            take,
            num_envs=options.num_envs,
            attempts=options.attempts,
            deadline_s=options.episode_timeout,
        )
        return opening.enter_context(pool)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def _close_connection(self) -> None:
        self.connection.close(self._status)

    # The run

    def run(self) -> dict[str, Any]:
        """Train to the end, resuming from the last checkpoint when the server was lost; return the results."""
        result: dict[str, Any] = {}
        try:
            with self.log, self._progress() as self.bar:
                if self.options.temperature != 1:
                    self._report(BIASED)
                if not self.options.resume:
                    RunState.remove(self.options.folder)
                result = self._to_the_end()
        except NotWritten:  # what was learned is on the server, and the table says where
            try:
                if result or self.learners:
                    self._print(result or self._results())
            except (ServerLost, NotAvailable) as error:
                print(f"the weights were not saved: {error}", file=sys.stderr)
            raise
        except KeyboardInterrupt as stop:  # without arguments it came before the training, or after it
            raise KeyboardInterrupt(*(stop.args or [self._resumption()])) from None
        self._status = "success"
        self._print(result)
        return result

    def _progress(self) -> Any:
        from tqdm import tqdm

        return tqdm(total=self.options.episodes or None, unit="episode", desc=self._env_id)

    def _print(self, result: dict[str, Any]) -> None:
        print(summary(f"{self._env_id}, {self.model}, backend {self.options.backend}", result))

    def _to_the_end(self) -> dict[str, Any]:
        """Train and save; an error or Ctrl-C ends with a checkpoint of the last whole update, if there is one."""
        try:
            while True:
                try:
                    self._train()
                    self._training.require_actions()
                    self.transcripts.write()
                    return self.finish()
                except ServerLost as error:
                    self._recover(error)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._stop()) from None
        except NotWritten:
            raise
        except EnvweaveError:
            if self.updates:
                self._report(self._stop())
            raise

    def _stop(self) -> str:
        """Save a checkpoint if the server answers soon; return from which update the run can go on."""
        is_saved = self.state.checkpoints and self.state.update == self.updates
        if self._is_whole and not is_saved:
            self._report("saving a checkpoint; Ctrl-C again ends without it")
            if failure := in_time(self._checkpoint_at_stop, STOP_S):
                self._report(f"no checkpoint of update {self.updates} was saved: {failure}")
        return self._resumption()

    def _resumption(self) -> str:
        if not self.state.checkpoints:
            return "there is no checkpoint yet"
        return f"--resume goes on from update {self.state.update}"

    def _checkpoint_at_stop(self) -> None:
        if not self.log.rows:  # it was stopped in the evaluation before the first update
            self.log.write(episodes=0)
        self._checkpoint()

    def _recover(self, error: ServerLost) -> None:
        self._is_whole = False
        self._losses += 1
        if self._losses > MOST_LOSSES:
            raise NotAvailable(f"{error}, {self._losses} times without an update in between") from error
        self._report(f"{error}; going on from update {self.state.update}")
        self.connection.reconnect(self.options.server_wait, self._report)
        self.learners = {}

    def _report(self, line: str) -> None:
        if self.bar is None:
            print_line(line)
        else:
            self.bar.write(line, file=sys.stderr)  # above the progress bar

    def _train(self) -> None:
        if not self.learners:
            self._open_learners()
            self._go_back()
        self._is_whole = True
        if not self.log.rows:
            self.log.write(episodes=0, **self.evaluate())
        while not self.is_done():
            self._one_update()

    def _open_learners(self) -> None:
        """Create the adapters, or restore them from the last checkpoint."""
        paths = self.state.checkpoints
        names = self._agents if self.options.adapters == "role" else ["all"]
        self.learners = {
            name: Learner(self.connection, self.options, self.model, name, paths.get(name, ""))
            for name in names
        }
        if self.prompts is None:
            tokenizer = next(iter(self.learners.values())).tokenizer()
            self.prompts = Prompts(tokenizer, self.options.prompt, self.options.stop)

    def _go_back(self) -> None:
        """Go back to the update of the last checkpoint, of which the metrics up to it must be there."""
        self.updates, self._success = self.state.update, self.state.success
        rows = self.updates + 1 if self.state.checkpoints else 0
        if len(self.log.rows) < rows:
            raise InvalidArgument(
                f"--resume: {FILE} in {self.options.folder} is at update {self.updates}, but metrics.jsonl has "
                f"{len(self.log.rows)} of its {rows} rows: they are of two runs; begin again without --resume"
            )
        self.log.keep(rows)
        self.transcripts.keep(self.updates if rows else -1)
        self.bar.n = 0
        self.bar.update(self.updates * self.options.batch)

    def is_done(self) -> bool:
        """Return whether the target is reached, or all episodes were played."""
        options = self.options
        if options.target_success_rate:
            reached = self.log.rows[-1].get("held_out_success") if options.eval_every else self._success
            if reached is not None and reached >= options.target_success_rate:
                return True
        return options.updates is not None and self.updates >= options.updates

    def _one_update(self) -> None:
        """Play the episodes of an update, train on them, evaluate and save where that is due."""
        options, number = self.options, self.updates
        started = self.log.seconds
        played = self._training.play(self._tasks(number), self.policies(), self.bar.update)
        rows = self._by_learner(self.training_rows(played.episodes, number))
        sampled = self.log.seconds
        rate = options.rate_at(number)
        values: dict[str, Any] = {}
        try:
            with interrupt_at_end(self._report, "finishing the update"):
                self._is_whole = False
                steps = [self.learners[name].update(part, rate) for name, part in rows.items() if part]
                self.updates += 1
                self.transcripts.update = self.updates
                values = {
                    "episodes": self.updates * options.batch,
                    **of_episodes(played, options),
                    **of_steps([step for one in steps for step in one], options),
                    "learning_rate": rate,
                    "sample_seconds": round(sampled - started, 3),
                    "train_seconds": round(self.log.seconds - sampled, 3),
                }
                self._note(played, values)
            if options.eval_every and (
                self.updates % options.eval_every == 0 or self.updates == options.updates
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
        self._losses = 0

    def _note(self, played: Played, values: Mapping[str, Any]) -> None:
        """Note the success of an update, what it played, and what there is to report about it."""
        if "success" in values:  # else all episodes were lost, which is no failure of the policy
            self._success += AVERAGED * (values["success"] - self._success)
        self._notices.faults(f"update {self.updates}", played)
        self._notices.trained(values.get("trained_rows", 0), values)
        self.transcripts.add(f"update {self.updates}", played.episodes[: self.options.group])

    def _write(self, values: Mapping[str, Any]) -> None:
        """Write the metrics of the last update, which is whole with them."""
        with interrupt_at_end(self._report, "writing the metrics"):
            self.log.write(**values)
            self._is_whole = True

    def _by_learner(self, rows: dict[str, list[TrainingRow]]) -> dict[str, list[TrainingRow]]:
        if self.options.adapters == "role":
            return {agent: rows.get(agent, []) for agent in self._agents}
        return {"all": [row for agent in self._agents for row in rows.get(agent, [])]}

    def _tasks(self, update: int) -> list[Task]:
        seed, group = self.options.seed, self.options.group
        tasks: list[Task] = []
        for index in range(self.options.groups):
            key = ("train", seed, update, index)
            opening = SharedRequest(group, seed_of(*key, "opening"))
            later = PromptRequests(group, *key) if self.shares_prompts else None
            task_seed = self.task_seed(update, index)
            tasks += [Task(key, index, member, task_seed, opening, later) for member in range(group)]
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

    def play_greedily(self, resets: Sequence[Mapping[str, Any]]) -> Played:
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
            played = self._training.play(tasks, self.policies(temperature=0.0), self.bar.update)
            for options, episode in zip(resets, played.episodes, strict=True):
                page.add(f"greedy, {dict(options)}", [episode])
        page.write(resumable=False)
        self._status = "success"
        return played

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
        played = self._held_out.play(tasks, self.policies(temperature=0.0))
        self._notices.faults("held out", played)
        self.transcripts.add("held out", played.episodes)
        values = of_episodes(played, options)
        return {f"held_out_{name}": values[name] for name in ("success", "reward") if name in values}

    def _checkpoint(self) -> None:
        """Save all adapters, then the state that names them, and delete the checkpoints that it names no more."""
        name = f"update-{self.updates:06d}"
        with interrupt_at_end(self._report, "saving the checkpoint"):
            checkpoints = {key: learner.save(name) for key, learner in self.learners.items()}
            scores = (row.get("held_out_success") for row in reversed(self.log.rows))
            score = next((one for one in scores if one is not None), self._success)
            superseded = self.state.advance(self.updates, checkpoints, self._success, score)
            self.log.sync()
            self.state.save(self.options.folder)
            self.transcripts.write()
        for path in superseded:
            try:
                self.connection.delete_checkpoint(path)
            except (ServerLost, NotAvailable) as error:
                self._report(f"the checkpoint {path} was not deleted: {error}")

    def finish(self) -> dict[str, Any]:
        """Save the last checkpoint and the weights for sampling, and return the results of the run."""
        if self.state.update != self.updates or not self.state.checkpoints:
            self._checkpoint()
        return self._results()

    def _results(self) -> dict[str, Any]:
        weights = {name: learner.save_for_sampling("final") for name, learner in self.learners.items()}
        rows = self.log.rows or [{}]
        first, last = rows[0], rows[-1]
        held_out = {
            "success on held-out tasks": last.get("held_out_success"),
            "success before training": first.get("held_out_success"),
        }
        return {
            **{name: value for name, value in held_out.items() if value is not None},
            "success in training": self._success,
            "updates": self.updates,
            "episodes": self.updates * self.options.batch,
            **problems(rows),
            "seconds": round(self.log.seconds, 1),
            "checkpoint": ", ".join(self.state.checkpoints.values()),
            "weights": ", ".join(weights.values()),
            "files": f"{self.log.folder}/metrics.jsonl, metrics.png, transcripts.html, state.json",
        }


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
