"""A training run: what is open during it, checkpoints to resume from, lost servers, and Ctrl-C.

A run goes on from its last checkpoint when the server was lost, and saves another one before an error or Ctrl-C ends
it. What an update does is in ``grpo.py``.
"""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import envweave_gym
from envweave_gym.chat import ChatGame, ChatRules
from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable, need, shown
from envweave_gym.training.run_lock import RunLock, remove_empty
from envweave_gym.training.run_metrics import NotWritten, RunMetrics, summary
from envweave_gym.training.tinker.connection import Connection, ServerLost
from envweave_gym.training.tinker.interrupts import interrupt_at_end
from envweave_gym.training.tinker.learner import Learner
from envweave_gym.training.tinker.local_server import LocalServer
from envweave_gym.training.tinker.notices import Notices
from envweave_gym.training.tinker.prompts import Prompts
from envweave_gym.training.tinker.rollouts import Rollouts
from envweave_gym.training.tinker.run_state import FILE, RunState, defaults_of, settings_of
from envweave_gym.training.tinker.tinker_options import DEFAULT_MODEL, SMOLLM, TinkerOptions
from envweave_gym.training.tinker.transcripts import Transcripts
from envweave_gym.training.tinker.update_metrics import problems
from envweave_gym.training.tinker.waiting import failure_within, print_line

TINY = "envweave/tiny"
LOCAL_MODELS = {TINY: "--tiny", SMOLLM: "--smollm"}
"""The base models of ``--local``, with the option of the server for each."""
MAX_RECONNECTS = 5
"""Times in a row that a run goes on after it lost its server, without an update in between."""
STOP_S = 10.0
"""Time for a checkpoint after Ctrl-C."""


class TrainingRun(ABC):
    """A run on one ID; a context manager that closes environments and connection."""

    curves: tuple[str, ...]
    """Metrics that are drawn."""

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
        """Check options, environment and server; the arguments are those of ``grpo.train``.

        A run that ``only_plays`` trains nothing, and may play a policy that was trained with other settings.
        """
        self.options, self._env_id = options, env_id
        self._held_out_resets = held_out_resets or [{}]
        need("tqdm", "tinker", "the progress bar")
        self.learners: dict[str, Learner] = {}
        self.prompts: Prompts | None = None
        self.bar: Any = None
        self._reconnects = 0
        self._is_consistent = False
        """Whether adapters and metrics are those of the last update, not in the middle of the next one."""
        self._agents: list[str] = []
        self._status = "errored"
        self._exit = contextlib.ExitStack()
        settings = settings_of(options, env_id=env_id, arguments=arguments or {}, held_out=held_out or {})
        self.state = RunState(settings=settings)
        with contextlib.ExitStack() as opening:
            lock = opening.enter_context(RunLock(options.folder))
            self.log = RunMetrics(
                options.folder,
                self.curves,
                resume=options.resume,
                lock=lock,
                replacing=lambda: RunState.remove(options.folder),
                report=self._report,
            )
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
        opening.callback(remove_empty, [folder])
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

        if not self._agents:  # of the environments that it trains on
            self._agents = list(first.roles)
            self.success_reward = self._success_reward(getattr(first.env, "spec", None))
        if not options.instruction:
            first.check()
        pool = Rollouts(
            take,
            num_envs=options.num_envs,
            attempts=options.attempts,
            deadline_s=options.episode_timeout,
        )
        return opening.enter_context(pool)

    def _success_reward(self, spec: Any) -> float:
        """Return the return from which an episode is a success: the option, else the threshold of the ID, else 1.

        A threshold is for whole episodes. Where ``--max-turns`` cuts them it is left out, which is reported, and no
        target that needs it is accepted.
        """
        options, default = self.options, 1.0
        if options.success_reward != "":
            return float(options.success_reward)
        threshold, steps = getattr(spec, "reward_threshold", None), getattr(spec, "max_episode_steps", None)
        if threshold is None:
            return default
        if steps is not None and options.max_turns >= steps:
            return float(threshold)
        length = f"of up to {steps} steps" if steps else "of any length"
        cut = f"the reward_threshold {threshold:g} of {self._env_id} is for whole episodes {length}, "
        cut += f"and --max-turns is {options.max_turns}"
        ways = "--success-reward" + (f", or --max-turns {steps}" if steps else "")
        if options.target_success_rate:
            raise InvalidArgument(f"--target-success-rate: {cut}; give {ways}")
        self._report(f"{cut}: success counts returns of {default} or more; to change that give {ways}")
        return default

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def _close_connection(self) -> None:
        self.connection.close(self._status)

    @abstractmethod
    def _make_updates(self) -> None:
        """Make updates until the run is done, and write their metrics and checkpoints."""

    # The run

    def run(self) -> dict[str, Any]:
        """Train to the end, resuming from the last checkpoint when the server was lost; return the results."""
        result: dict[str, Any] = {}
        try:
            with self.log, self._progress() as self.bar:
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

    @property
    def episodes(self) -> int:
        """The episodes of the updates so far."""
        return self.log.rows[-1].get("episodes", 0) if self.log.rows else 0

    def _progress(self) -> Any:
        from tqdm import tqdm

        group = self.options.group
        return tqdm(
            total=-(-self.options.episodes // group) * group or None, unit="episode", desc=self._env_id
        )

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
        if self._is_consistent and not is_saved and not self.log.replaces_earlier:
            self._report("saving a checkpoint; Ctrl-C again ends without it")
            if failure := failure_within(self._checkpoint_at_stop, STOP_S):
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
        self._is_consistent = False
        self._reconnects += 1
        if self._reconnects > MAX_RECONNECTS:
            raise NotAvailable(f"{error}, {self._reconnects} times without an update in between") from error
        try:
            self.connection.reconnect(self.options.server_wait, self._report)
        except (NotAvailable, InvalidArgument) as failure:  # say why it was lost, too
            raise type(failure)(f"{error}; then: {failure}") from failure
        self._report(f"{error}; going on from update {self.state.update}")
        self.learners = {}

    def _report(self, line: str) -> None:
        if self.bar is None:
            print_line(line)
        else:
            self.bar.write(line, file=sys.stderr)  # above the progress bar

    # Adapters and checkpoints

    def _train(self) -> None:
        if not self.learners:
            self._open_learners()
            self._go_back()
        self._is_consistent = True
        self._make_updates()

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
        self.bar.update(self.episodes)

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
            "episodes": self.episodes,
            **problems(rows),
            "seconds": round(self.log.seconds, 1),
            "checkpoint": ", ".join(self.state.checkpoints.values()),
            "weights": ", ".join(weights.values()),
            "files": f"{self.log.folder}/metrics.jsonl, metrics.png, transcripts.html, state.json"
            + ", checkpoints" * (self.connection.local is not None),
        }
