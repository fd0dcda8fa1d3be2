"""Checks that valid arguments and calls are accepted, and that invalid ones raise and change nothing.

They apply to Gymnasium and to PettingZoo environments.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Space

from envweave_gym.core.faults import InvalidAction, InvalidArgument, ResetNeeded
from envweave_gym.testing.reproducibility_checks import SEED, expect_same
from envweave_gym.testing.subject import RAISED, Form, Subject, expected, refuse, translated
from envweave_gym.testing.traces import AECPlayer, GymPlayer, ParallelPlayer, Player, brief

MOVES = 12
NOT_ACTIONS = (None, object(), "no such action", "\ud800", -987_654_321, 0.5, [], {}, ("?",))
NOT_SEEDS = (-1, 1.5, "seven", True, [1, 2])
STRANGE_ARGUMENT = "no_such_argument"


def check_random_actions_never_raise(subject: Subject) -> None:
    """Check that every action of the space gives an observation in the observation space and a finite reward."""
    for form in subject.forms():
        with form.open() as player:
            for seed in range(5):
                with translated(f"{form.label}: reset(seed={seed}) raised"):
                    player.reset(seed)
                for number in range(60):
                    _move(form, player, seed, number)


def _move(form: Form, player: Player, seed: int, number: int) -> None:
    try:
        moment = player.reset() if player.over else player.move()
    except RAISED as error:
        what = f"{form.label}: seed {seed}, move {number}: action {brief(player.acted)} raised"
        advice = "answer a bad choice with an observation or a reward; exceptions are for faults"
        refuse(f"{what} {type(error).__name__}: {error}", advice, error)
    for space, observation in _observed(player, moment.observation):
        if observation not in space:
            what = f"{form.label}: seed {seed}, move {number}: observation {brief(observation)}"
            refuse(f"{what} is not in {space}", "widen observation_space or keep to it")
    _expect_finite(f"{form.label}: seed {seed}, move {number}", moment.reward)


def expect_finite_rewards(form: Form) -> None:
    """Fail if a reward is NaN or infinite, before another test reports NaN as a difference of two episodes."""
    with form.open() as player:
        for number, moment in enumerate(player.play(SEED, MOVES)):
            _expect_finite(f"{form.label}: seed {SEED}, move {number}", moment.reward)


def _expect_finite(where: str, reward: Any) -> None:
    rewards: dict[str, Any] = reward if isinstance(reward, dict) else {"": reward}
    for agent, one in rewards.items():
        if not np.isfinite(np.asarray(one, float)).all():
            paid = f"the reward of {agent} is" if agent else "the reward is"
            refuse(f"{where}: {paid} {brief(one)}", "a reward is a finite number")


def _observed(player: Player, observation: Any) -> list[tuple[Space[Any], Any]]:
    """Return the observations in a reset or step, each with the space that must contain it."""
    if isinstance(player, GymPlayer):
        return [(player.env.observation_space, observation)]
    if observation is None:
        return []
    seen = {player.acted[0]: observation} if isinstance(player, AECPlayer) else observation
    return [(player.env.observation_space(agent), one) for agent, one in seen.items()]


def check_invalid_actions_change_nothing(subject: Subject) -> None:
    """Check that an action outside the space raises ``InvalidAction`` and leaves the episode as it was."""
    subject.needs_determinism()
    for form in subject.stacks():

        def send_invalid(player: Player, form: Form = form) -> None:
            for misuse, action in [] if player.over else _invalid_actions(player):
                with expected(InvalidAction, f"{form.label}: {misuse}", "put RequestStream around it"):
                    player.env.step(action)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Box.contains warns of each value that it has to cast
            _expect_undisturbed(form, send_invalid, "a refused action")


def _invalid_actions(player: Player) -> list[tuple[str, Any]]:
    """Return the wrong actions that ``step`` must refuse now, each with the text of the call for the report."""
    env = player.env
    if isinstance(player, GymPlayer):
        return [(f"step({brief(bad)})", bad) for bad in outside(env.action_space)]
    if isinstance(player, AECPlayer):
        agent = env.agent_selection
        leaving = env.terminations[agent] or env.truncations[agent]
        wrong = NOT_ACTIONS[1:] if leaving else outside(env.action_space(agent))
        return [(f"step({brief(bad)}) of {agent}", bad) for bad in wrong]
    assert isinstance(player, ParallelPlayer)
    agents = [agent for agent in env.agents if player.asks(agent)]
    good = {agent: env.action_space(agent).sample() for agent in agents}
    bad = [{**good, agents[0]: wrong} for wrong in outside(env.action_space(agents[0]))]
    absent = {agent: action for agent, action in good.items() if agent != agents[0]}
    return [(f"step({brief(actions)})", actions) for actions in (*bad, absent, {**good, "nobody_99": 0})]


def outside(space: Space[Any]) -> list[Any]:
    """Return values that are not in this action space."""
    return [value for value in NOT_ACTIONS if not space.contains(value)]


def check_bad_seeds_are_refused(subject: Subject) -> None:
    """Check that an invalid seed raises ``InvalidArgument`` and leaves the episode as it was."""
    subject.needs_determinism()
    for form in subject.stacks():

        def seed_badly(player: Player, form: Form = form) -> None:
            for bad in NOT_SEEDS:
                misuse = f"{form.label}: reset(seed={bad!r})"
                with expected(InvalidArgument, misuse, "a seed is an int >= 0 or None"):
                    player.env.reset(seed=bad)

        _expect_undisturbed(form, seed_badly, "a refused seed")


def _expect_undisturbed(form: Form, disturb: Callable[[Player], None], misuse: str) -> None:
    __tracebackhide__ = True
    with form.open() as player:
        quiet = player.play(SEED, MOVES)
        disturbed = player.play(SEED, MOVES, before_each=disturb)
        what = f"{form.label}: after {misuse} the episode does not go on as it should"
        expect_same(quiet, disturbed, what, "check before anything is changed or drawn")


def check_step_needs_reset(subject: Subject) -> None:
    """Check that ``step`` before ``reset`` or after the end raises ``ResetNeeded``, and that ``reset`` then works."""
    subject.needs_determinism()
    for form in subject.stacks():
        limit = {} if subject.is_game else {"max_steps": 5}
        with form.open(**limit) as fresh, form.open(**limit) as other:
            advice = "say which call is missing"
            with expected(ResetNeeded, f"{form.label}: step() before reset()", advice):
                fresh.env.step(_some_action(fresh))
            what = f"{form.label}: after a step() that came too early reset() does not start as it should"
            expect_same(other.play(SEED, 4), fresh.play(SEED, 4), what, "a refused step must change nothing")
            fresh.reset(SEED)
            if not fresh.finish():
                continue
            with expected(ResetNeeded, f"{form.label}: step() after the end", advice):
                fresh.env.step(_some_action(fresh))
            what = f"{form.label}: after a step() that came too late reset() does not start as it should"
            expect_same(other.play(SEED, 4), fresh.play(SEED, 4), what, "a refused step must change nothing")


def _some_action(player: Player) -> Any:
    env = player.env
    if isinstance(player, GymPlayer):
        return env.action_space.sample()
    actions = {agent: env.action_space(agent).sample() for agent in env.possible_agents}
    return actions[env.possible_agents[0]] if isinstance(player, AECPlayer) else actions


def check_unknown_arguments_are_refused(subject: Subject) -> None:
    """Check that an unknown constructor argument raises an error that names the argument and the ID."""
    for form in subject.stacks():
        misuse = f"{form.label}: make(…, {STRANGE_ARGUMENT}=1)"
        advice = "do not swallow **kwargs"
        with expected((TypeError, ValueError), misuse, advice):
            try:
                form.make(**{STRANGE_ARGUMENT: 1}).close()
            except (TypeError, ValueError) as error:
                unnamed = [name for name in _to_be_named(subject) if name not in str(error)]
                if unnamed:
                    refuse(f"{misuse}: the error does not name {' and '.join(unnamed)}: {error}", advice)
                raise


def _to_be_named(subject: Subject) -> list[str]:
    """Return the texts that the error for an unknown argument must contain: the argument, and the ID if it is known.

    The ID is required only if a card or Gymnasium's registry has it; otherwise the constructor raises the error, and
    it does not know the ID.
    """
    env_id = subject.env_id
    if env_id is not None and (subject.is_launched or env_id in gym.registry):
        return [STRANGE_ARGUMENT, env_id]
    return [STRANGE_ARGUMENT]


def check_close_twice(subject: Subject) -> None:
    """Check that ``close`` can be called before the first reset, in mid-episode, and a second time."""
    for form in subject.forms():
        for moves in (None, 1):
            player = form.player()
            with translated(f"{form.label}: close() raised", "let a second close() do nothing"):
                if moves is not None:
                    player.play(SEED, moves)
                player.env.close()
                player.env.close()
