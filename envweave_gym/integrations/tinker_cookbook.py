"""Environments of this package in tinker-cookbook's ``rl.train``: ``Config(dataset_builder=EnvDatasetBuilder(…), …)``.

Every ID whose actions can be read from text is trained on without code of its own. Needs the extra ``cookbook``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import envweave_gym
from envweave_gym.core.faults import InvalidArgument, NotAvailable, need, shown
from envweave_gym.integrations.chat_episode import ChatEpisode, ChatMessage, ChatRules, ChatTurn, Ending
from envweave_gym.integrations.own_thread import OwnThread

_PURPOSE = "envweave_gym.integrations.tinker_cookbook"
chz = need("chz", "cookbook", _PURPOSE)
_renderers = need("tinker_cookbook.renderers", "cookbook", _PURPOSE)
_message_env = need("tinker_cookbook.rl.message_env", "cookbook", _PURPOSE)
_rl_types = need("tinker_cookbook.rl.types", "cookbook", _PURPOSE)
_tokenizers = need("tinker_cookbook.tokenizer_utils", "cookbook", _PURPOSE)

HELD_OUT = 2**30
"""The first seed of held-out episodes; those of training are below it."""
CLOSE_S = 30.0
"""Limit in seconds of the wait until the environments of a group are closed; those in a call that hangs stay open."""
LOGGED_CHARACTERS = 2_000
_log = logging.getLogger(__name__)


def use_tokenizer(model_name: str, folder: str | Path) -> None:
    """Let the cookbook read the tokenizer of a model from a folder, for models that no hub has, as local ones."""

    @cache
    def load() -> Any:
        transformers = need("transformers", "cookbook", _PURPOSE)
        return transformers.AutoTokenizer.from_pretrained(str(folder))

    _tokenizers.register_tokenizer(model_name, load)


def renderer_of(renderer_name: str, model_name: str) -> Any:
    """Return the cookbook's renderer of that name; it can be pickled."""
    return _renderers.get_renderer(
        renderer_name, _tokenizers.get_tokenizer(model_name), model_name=model_name
    )


class EnvMessageEnv(_message_env.MessageEnv):
    """One episode of one environment. A lost episode raises, so the rollout fails and can be repeated.

    ``rollout_error_tolerance=True`` in the cookbook's ``Config`` repeats failed rollouts with new environments.
    """

    def __init__(self, episode: ChatEpisode, name: str) -> None:
        self._episode, self._thread = episode, OwnThread(name)
        self.example_id = name
        """The name of the task in the cookbook's logs."""

    async def initial_observation(self) -> list[dict[str, Any]]:
        """Make and reset the environment, and return the prompt."""
        messages = await asyncio.wrap_future(self._thread.call(self._episode.begin))
        return cookbook_messages(messages)

    async def step(self, message: Any) -> Any:
        """Play the reply, and return a ``MessageStepResult`` with the whole history."""
        text = _renderers.get_text_content(message)
        turn = await asyncio.wrap_future(self._thread.call(partial(self._episode.reply, text)))
        return message_step(turn, self._episode.history.messages, text)

    def close(self) -> Any:
        """Begin to close the environment, after the call that runs; return the future of that."""
        closed = self._thread.call(self._episode.close)
        self._thread.end()
        return closed


@dataclass
class EnvGroupBuilder(_rl_types.EnvGroupBuilder):
    """``group_size`` episodes that reset with the same seed, so that their rewards can be compared.

    It can be pickled: environments are made by the first call of an episode, not before.
    """

    env_id: str
    env_kwargs: Mapping[str, Any]
    seed: int
    group_size: int
    renderer: Any
    rules: ChatRules = field(default_factory=ChatRules)
    max_trajectory_tokens: int | None = None
    _episodes: list[EnvMessageEnv] = field(default_factory=list[EnvMessageEnv], repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the open environments."""
        return {**self.__dict__, "_episodes": []}

    async def make_envs(self) -> Sequence[Any]:
        """Return the environments of the group, which are not made yet."""
        make = partial(envweave_gym.make, self.env_id, **self.env_kwargs)
        name = f"{self.env_id} seed={self.seed}"
        new = [
            EnvMessageEnv(ChatEpisode(make, self.seed, rules=self.rules), name)
            for _ in range(self.group_size)
        ]
        self._episodes += new
        return [
            token_env(
                _message_env.EnvFromMessageEnv, one, self.renderer, self.rules, self.max_trajectory_tokens
            )
            for one in new
        ]

    async def cleanup(self) -> None:
        """Close the environments."""
        episodes, self._episodes = self._episodes, []
        await closed([episode.close() for episode in episodes], self.env_id)

    def logging_tags(self) -> list[str]:
        """Return the name under which the metrics of the environment are logged."""
        return [tag_of(self.env_id)]


class SeedDataset(_rl_types.RLDataset):
    """Batches of group builders: group ``i`` of all has the seed ``first_seed + i``."""

    def __init__(
        self,
        batches: int,
        groups_per_batch: int,
        first_seed: int,
        builders: Callable[[int], list[Any]],
    ) -> None:
        """Take a function that returns the builders of one seed: one, or one for each role of a game."""
        self._batches, self._groups, self._first = batches, groups_per_batch, first_seed
        self._builders = builders

    def __len__(self) -> int:
        """Return the number of batches."""
        return self._batches

    def get_batch(self, index: int) -> list[Any]:
        """Return the builders of one batch."""
        first = self._first + index * self._groups
        return [builder for seed in range(first, first + self._groups) for builder in self._builders(seed)]


@chz.chz
class EnvDatasetBuilder(_rl_types.RLDatasetBuilder):
    """The tasks of one ID for ``rl.train``: seeds for training, and held-out seeds for evaluation."""

    env_id: str
    """An ID as for :func:`envweave_gym.make`."""
    model_name: str
    """The model whose tokenizer the renderer uses: that of ``Config``."""
    renderer_name: str
    env_kwargs: dict[str, Any] = chz.field(default_factory=dict)
    """Arguments of :func:`envweave_gym.make`, such as ``backend``; plain data, as they are pickled."""
    test_kwargs: dict[str, Any] = chz.field(default_factory=dict)
    """Arguments that are different in held-out episodes, such as ``{"split": "test"}``."""
    batches: int = 50
    groups_per_batch: int = 8
    group_size: int = 8
    test_groups: int = 32
    """The number of held-out episodes, each of another seed; 0 for none."""
    seed: int = 0
    """The seed of the first group."""
    max_turns: int = 16
    invalid_replies: int = 0
    """Replies that name no action after which the model is asked again; one more ends the episode."""
    invalid_reward: float = 0.0
    """The reward of a reply that ends its episode: it names no action, or is too long."""
    max_trajectory_tokens: int | None = None

    async def __call__(self) -> tuple[Any, Any]:
        """Return the data sets for training and for evaluation."""
        check_seeds(self.seed, self.batches * self.groups_per_batch)
        rules = ChatRules(self.max_turns, self.invalid_replies, self.invalid_reward)
        shared = {
            "renderer": renderer_of(self.renderer_name, self.model_name),
            "rules": rules,
            "max_trajectory_tokens": self.max_trajectory_tokens,
        }

        def builders(kwargs: dict[str, Any], size: int, seed: int) -> list[Any]:
            return [EnvGroupBuilder(self.env_id, kwargs, seed, size, **shared)]

        of_training = partial(builders, dict(self.env_kwargs), self.group_size)
        held_out = partial(builders, {**self.env_kwargs, **self.test_kwargs}, 1)
        return (
            SeedDataset(self.batches, self.groups_per_batch, self.seed, of_training),
            SeedDataset(1, self.test_groups, HELD_OUT, held_out) if self.test_groups else None,
        )


# Shared with games


def check_seeds(first: int, number: int) -> None:
    """Raise ``InvalidArgument`` if seeds of training are negative or reach those that are held out."""
    if first < 0 or first + number > HELD_OUT:
        raise InvalidArgument(
            f"seed={shown(first)} and {number} groups: seeds of training are between 0 and {HELD_OUT - 1}"
        )


def tag_of(env_id: str) -> str:
    """Return the short name of an ID for metrics: ``GSM8K-v0`` for ``envweave/GSM8K-v0``."""
    return env_id.rpartition("/")[2]


def token_env(
    kind: Callable[..., Any], message_env: Any, renderer: Any, rules: ChatRules, limit: int | None
) -> Any:
    """Return a message environment as one of tokens; a reply that is too long costs what an invalid one does."""
    return kind(
        renderer,
        message_env,
        failed_parse_reward=rules.invalid_reward,
        context_overflow_reward=rules.invalid_reward,
        max_trajectory_tokens=limit,
    )


def message_step(turn: ChatTurn, history: list[ChatMessage], text: str) -> Any:
    """Return a turn in the cookbook's form, with the whole history."""
    logs = {"reply": text[:LOGGED_CHARACTERS]}
    over = turn.ending is not None
    new = cookbook_messages(history)
    return _message_env.MessageStepResult(turn.reward, over, new, metrics_of(turn), logs)


def metrics_of(turn: ChatTurn) -> dict[str, float]:
    """Return the metrics of a turn, with the reason of the end as ``stop/…`` in the cookbook's words."""
    if turn.ending is None:
        return dict(turn.metrics)
    reason = Ending.MAX_TURNS if turn.ending is Ending.OTHERS else turn.ending
    return {**turn.metrics, f"{_rl_types.STOP_METRIC_PREFIX}{reason}": 1.0}


def cookbook_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages in the form of the cookbook's renderers."""
    return [_cookbook_message(message) for message in messages]


def _cookbook_message(message: ChatMessage) -> dict[str, Any]:
    parts = message.get("content") or ""
    if not isinstance(parts, str):
        kinds = {str(part.get("type")) for part in parts} - {"text"}
        if kinds:
            raise NotAvailable(
                f"a message has parts of type {shown(min(kinds))}; the adapter renders only text"
            )
        parts = "".join(part["text"] for part in parts)
    rest = {key: message[key] for key in ("tool_call_id", "name") if key in message}
    if calls := message.get("tool_calls"):
        rest["tool_calls"] = [_tool_call(call) for call in calls]
    return {"role": message["role"], "content": parts, **rest}


def _tool_call(call: dict[str, Any]) -> Any:
    body = call["function"]
    arguments = body["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = _renderers.ToolCall.FunctionBody(name=body["name"], arguments=text)
    return _renderers.ToolCall(function=function, id=call.get("id"))


async def closed(futures: Sequence[Any], name: str) -> None:
    """Wait until environments are closed, and log those that cannot be closed; ``name`` is theirs."""
    if not futures:
        return
    waiting = [asyncio.wrap_future(one) for one in futures]
    done, hanging = await asyncio.wait(waiting, timeout=CLOSE_S)
    if hanging:
        _log.warning("%s: %d environments are still in a call after %g s", name, len(hanging), CLOSE_S)
    for one in done:
        if not one.cancelled() and (error := one.exception()):
            _log.warning("%s: closing an environment failed: %s", name, error)
