"""Environments of this package for TRL: ``GRPOTrainer(environment_factory=environment_factory(ID), …)``.

TRL resets an environment for each completion, offers its public methods as tools, and reads its reward at the end.
Needs the extra ``trl``; this module imports nothing of TRL.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import envweave_gym
from envweave_gym.chat import ChatGame, ChatMessage, ChatRules, messages_since, text_of
from envweave_gym.chat.instructions import default_instruction
from envweave_gym.chat.results import fault_from
from envweave_gym.core.arguments import check_int
from envweave_gym.core.faults import FaultCount, FaultStorm, InvalidAction, InvalidArgument, need
from envweave_gym.core.protocols import AGENT

INSTRUCTION = "Answer with a call of the tool `act`.\n\n"
OVER = "The episode is over."
ACTION_FORM = "The action is {form}."
"""The sentence before the first observation of an environment that writes no messages."""
_WITHOUT_LIMIT = 2**31
"""TRL has its own limits: ``max_tool_calling_iterations`` and ``max_completion_length``."""
_PURPOSE = "envweave_gym.integrations.trl"


class ToolEnvironment:
    """One episode after another of one environment, played by calls of the tool :meth:`act`.

    TRL offers every public method but ``reset`` and ``get_reward`` as a tool, so further ones begin with ``_``.
    """

    def __init__(self, make: Callable[[], ChatGame], faults: FaultCount, no_action_reward: float) -> None:
        """Take a function that makes the environment, and the count of faults in all episodes."""
        self._make, self._faults, self._no_action_reward = make, faults, no_action_reward
        self._game: ChatGame | None = None
        self._reward: float | None = None
        self._over, self._lost = True, False
        self._storm: FaultStorm | None = None

    def reset(self, seed: int | None = None, **row: Any) -> str:
        """Begin the episode of ``seed``, and return its prompt; TRL appends that to the last message of the row."""
        self._reward, self._over, self._lost = None, False, False
        try:
            if self._game is None:
                self._game = self._make()
            self._game.reset(seed)
            return _text(self._game.messages(AGENT))
        except InvalidArgument:
            raise
        except Exception as error:  # noqa: BLE001 - whatever fails, this episode is lost and not the whole training
            self._lose(error)
            return ""

    def act(self, action: str) -> str:
        """Do an action in the environment, and return what happens.

        Args:
            action: The action, in the words that the task asks for.

        Returns:
            What happens, or that the episode is over.
        """
        game = self._game
        if game is None or self._over:
            return OVER
        before = game.messages(AGENT)
        try:
            game.reply(AGENT, str(action))
            turn, new = game.take_turn(AGENT), _text(messages_since(before, game.messages(AGENT)))
        except Exception as error:  # noqa: BLE001 - TRL would show it to the model, and score the episode
            self._lose(error)
            return OVER
        if turn.refused:
            raise InvalidAction(new)
        self._reward = (self._reward or 0.0) + turn.reward
        self._over = turn.ending is not None
        if not self._over:
            return new or "Done."
        self._faults.clear()
        return f"{new}\n\n{OVER}" if new else OVER

    def get_reward(self) -> float | None:
        """Return the sum of the rewards; ``None``, which TRL leaves out of the group, if the episode was lost."""
        if self._storm is not None:
            raise self._storm
        if self._lost:
            return None
        return self._no_action_reward if self._reward is None else self._reward

    def _lose(self, error: Exception) -> None:
        """Give this episode up, and its environment, which may be broken."""
        self._lost = self._over = True
        game, self._game = self._game, None
        if game is not None:
            threading.Thread(target=_close, args=[game], daemon=True).start()
        try:
            self._faults.add(fault_from(error))
        except (
            FaultStorm
        ) as storm:  # TRL would show an exception of act to the model; it lets those of get_reward out
            self._storm = storm


def environment_factory(
    env_id: str, *, no_action_reward: float = 0.0, tool: str | None = None, **kwargs: Any
) -> Callable[[], ToolEnvironment]:
    """Return what ``GRPOTrainer`` takes as ``environment_factory``: every completion plays an episode of ``env_id``.

    ``no_action_reward`` is the reward of a completion without a call that names an action. ``tool``
    replaces the sentence that describes the tool to the model. ``kwargs`` are those of :func:`envweave_gym.make`.
    """
    with closing(_chat_game(env_id, kwargs)) as probe:
        if not probe.is_single:
            raise InvalidArgument(
                f"{env_id} is a game of several agents; TRL trains one agent, in IDs of Gymnasium"
            )
        probe.check()
    kind = _class_of(env_id, tool)
    make, faults = partial(_chat_game, env_id, kwargs), FaultCount(env_id)
    return lambda: kind(make, faults, no_action_reward)


def _chat_game(env_id: str, kwargs: dict[str, Any]) -> ChatGame:
    rules = ChatRules(_WITHOUT_LIMIT, _WITHOUT_LIMIT)
    explain = partial(default_instruction, sentence=ACTION_FORM)
    return ChatGame(envweave_gym.make(env_id, **kwargs), rules, explain=explain)


def seed_dataset(size: int, *, first_seed: int = 0, instruction: str = INSTRUCTION) -> Any:
    """Return a ``datasets.Dataset`` for TRL: the instruction as the prompt, and a seed for each row.

    For held-out episodes give a ``first_seed`` that training does not reach. TRL appends the prompt of the episode.
    """
    check_int("size", size, "no number of rows", 1)
    check_int("first_seed", first_seed, "no seed", 0)
    rows = [
        {"prompt": [{"role": "user", "content": instruction}], "seed": seed}
        for seed in range(first_seed, first_seed + size)
    ]
    return need("datasets", "trl", _PURPOSE).Dataset.from_list(rows)


def _class_of(env_id: str, tool: str | None) -> type[ToolEnvironment]:
    """Return a class for an ID: TRL names the reward after the class, and describes the tool by its docstring."""

    class Named(ToolEnvironment):
        # TRL reads the annotations, and an annotated self would be a parameter of the tool.
        def act(self, action: str) -> str:
            return super().act(action)

    first, rest = (ToolEnvironment.act.__doc__ or "").split("\n", 1)
    Named.act.__doc__ = f"{tool or first}\n{rest}"
    Named.__name__ = "".join(part for part in env_id.rpartition("/")[2] if part.isalnum())
    return Named


def _text(messages: Sequence[ChatMessage]) -> str:
    """Return the contents of messages as one text."""
    return "\n\n".join(map(text_of, messages))


def _close(game: ChatGame) -> None:
    """Close the environment of a lost episode, in a thread of its own, as it may hang."""
    with contextlib.suppress(Exception):  # the fault is recorded, and another one would add nothing
        game.close()
