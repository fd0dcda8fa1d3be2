"""Checks of PettingZoo environments: runs PettingZoo's own tests, and compares the AEC and parallel forms."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections import defaultdict
from collections.abc import Generator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from pettingzoo.utils.conversions import parallel_to_aec

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.testing.misuse_checks import expect_finite_rewards
from envweave_gym.testing.mutation_checks import cannot_render_here, without_human
from envweave_gym.testing.reproducibility_checks import MANY_SEEDS
from envweave_gym.testing.subject import (
    ConformanceError,
    Form,
    NotApplicable,
    Subject,
    expected,
    refuse,
    translated,
    without_warnings,
)
from envweave_gym.testing.traces import AECPlayer, Moment, Player, brief, same

PETTINGZOO_ADVICE = (
    "Observation is not a NumPy array",
    "Observation space for each agent probably should be gymnasium.spaces.box or gymnasium.spaces.discrete",
    "Action space for each agent probably should be gymnasium.spaces.box or gymnasium.spaces.discrete",
    "We recommend agents to be named in the format <descriptor>_<number>",
    "Observation is a single number",
    "Observation numpy array is all zeros",
    "Agent's minimum observation space value is -infinity",
    "Agent's maximum observation space value is infinity",
    "Agents have different observation space sizes",
    "The class of observation spaces is different between two agents",
    "Observations are different shapes",
    "Observations have different number of dimensions",
)
"""Warnings of PettingZoo's tests that are ignored, because they concern valid games.

Examples are Dict and text spaces, agents called ``north`` and ``south``, and boxes without bounds. Other examples are
observations that are all zeros, and agents with different spaces. PettingZoo excepts some of its own games by name.
"""

CYCLES = 100
MAX_CYCLES = 4
"""Limit of cycles that PettingZoo's ``max_cycles_test`` passes to the environment."""


def _tests() -> Any:
    """Return the module ``pettingzoo.test``, imported without the deprecation warning that its import raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module("pettingzoo.test")


@contextlib.contextmanager
def _quietly(form: Form, test: str, env: Any) -> Generator[None]:
    """Run one of PettingZoo's tests in the ``with`` block: discard its output, fail on its warnings and exceptions."""
    what = f"{form.label}: PettingZoo's {test}"
    with (
        contextlib.redirect_stdout(io.StringIO()),
        translated(f"{what} fails"),
        without_warnings(what, env, PETTINGZOO_ADVICE),
    ):
        yield


def check_aec_api(subject: Subject) -> None:
    """Run PettingZoo's ``api_test``."""
    _run_test(subject.stack("aec"), "api_test")


def check_parallel_api(subject: Subject) -> None:
    """Run PettingZoo's ``parallel_api_test``."""
    _run_test(subject.stack("parallel"), "parallel_api_test")


def check_aec_seeds(subject: Subject) -> None:
    """Run PettingZoo's ``seed_test``."""
    subject.needs_determinism()
    _run_test(subject.stack("aec"), "seed_test", takes_factory=True)


def check_parallel_seeds(subject: Subject) -> None:
    """Run PettingZoo's ``parallel_seed_test``."""
    subject.needs_determinism()
    _run_test(subject.stack("parallel"), "parallel_seed_test", takes_factory=True)


def _run_test(form: Form, test: str, *, takes_factory: bool = False) -> None:
    """Run a test of PettingZoo on an environment; with ``takes_factory`` on the function that makes it."""
    with form.open() as player, _quietly(form, test, player.env):
        expect_finite_rewards(form)
        getattr(_tests(), test)(form.make if takes_factory else player.env, num_cycles=CYCLES)


def check_max_cycles(subject: Subject) -> None:
    """Run PettingZoo's ``max_cycles_test``; does not apply to games without an argument ``max_cycles``.

    The test assumes that the limit ends the episode. So it runs with a seed whose episode lasts longer without a
    limit, and does not apply if no such seed is found.
    """
    aec, parallel = subject.stack("aec"), subject.stack("parallel")
    try:
        parallel.make(max_cycles=MAX_CYCLES).close()
    except (TypeError, ValueError):
        raise NotApplicable(f"{subject.name} takes no argument max_cycles") from None
    seed = next((seed for seed in MANY_SEEDS if _lasts(parallel, seed)), None)
    if seed is None:
        raise NotApplicable(f"{subject.name} has no episode of more than {MAX_CYCLES} simultaneous cycles")
    with contextlib.ExitStack() as made:

        def seeded(form: Form, max_cycles: int) -> Any:
            return _Seeded(made.enter_context(form.open(max_cycles=max_cycles)).env, seed)

        module = SimpleNamespace(env=partial(seeded, aec), parallel_env=partial(seeded, parallel))
        advice = f"truncate after max_cycles cycles, here {MAX_CYCLES}, in both forms"
        with translated(f"{subject.name}: PettingZoo's max_cycles_test fails", advice):
            _tests().max_cycles_test(module)


def _lasts(form: Form, seed: int) -> bool:
    """Return whether the episode of ``seed`` lasts longer than ``MAX_CYCLES`` if every agent acts in every cycle."""
    with form.open(max_cycles=100 * MAX_CYCLES) as player:
        env = _Seeded(player.env, seed)
        infos = env.reset()[1]
        for _ in range(MAX_CYCLES + 1):
            if not env.agents or not all(infos[agent].get("active", True) for agent in env.agents):
                return False
            infos = env.step({agent: env.action_space(agent).sample() for agent in env.agents})[-1]
        return True


class _Rendered:
    """Proxy of an environment whose metadata declares only the given render modes."""

    def __init__(self, env: Any, modes: list[str]) -> None:
        self._env, self.metadata = env, {**env.metadata, "render_modes": modes}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


class _Seeded:
    """Proxy of an environment that seeds each reset and the action spaces, which PettingZoo's test does not do."""

    def __init__(self, env: Any, seed: int) -> None:
        self._env, self._seed = env, seed

    def reset(self) -> Any:
        for number, agent in enumerate(self._env.possible_agents):
            self._env.action_space(agent).seed(self._seed + number)
        return self._env.reset(seed=self._seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def check_game_render_modes(subject: Subject) -> None:
    """Run PettingZoo's ``render_test`` in the declared render modes except ``human``.

    If the ID has a card, an undeclared render mode must raise ``InvalidArgument``.
    """
    form = subject.stack(subject.apis[0])
    with form.open() as player:
        env, modes = player.env, player.env.metadata.get("render_modes")
    advice = 'declare metadata["render_modes"], [] where there are none'
    if not isinstance(modes, list | tuple):
        refuse(f"{form.label}: metadata['render_modes'] is {modes!r}", advice)
    if subject.is_launched:
        with expected(InvalidArgument, f"{form.label}: make(…, render_mode='no_such_mode')", advice):
            form.make(render_mode="no_such_mode").close()
    tried = without_human(modes)
    try:
        _render_test(form, env, tried)
    except ConformanceError as error:
        cause = error.__cause__
        if cause is None or not tried or not cannot_render_here(subject, tried[0], cause):
            raise
        raise NotApplicable(f"{form.label} cannot render here: {cause}") from error


def _render_test(form: Form, env: Any, tried: list[str]) -> None:
    with contextlib.ExitStack() as made, _quietly(form, "render_test", env):

        def build(*, render_mode: str = "human") -> Any:
            # render_test makes "human" first, to read the metadata, whether or not it is declared
            chosen = {"render_mode": render_mode} if render_mode in tried else {}
            env = made.enter_context(form.open(**chosen)).env
            return _Rendered(parallel_to_aec(env) if form.api == "parallel" else env, tried)

        _tests().render_test(build)


def check_aec_and_parallel_agree(subject: Subject) -> None:
    """Check that with one seed and the same actions every agent's return is the same in the AEC and parallel forms.

    Episodes that do not end in both forms are left out: the AEC form does not say the rewards of its last round.
    """
    subject.needs_determinism()
    compared = 0
    forms = [subject.stack("aec"), subject.stack("parallel")]
    with forms[0].open() as turns, forms[1].open() as rounds:
        for seed in MANY_SEEDS:
            (acted, earned), (acted_too, earned_too) = (_totals(player, seed) for player in (turns, rounds))
            if not (turns.over and rounds.over):
                continue
            compared += 1
            what = f"{subject.name}, seed {seed}: the AEC and the parallel form"
            advice = "make one form from the other (TurnBasedParallel, parallel_to_aec)"
            if not same(acted, acted_too):
                refuse(f"{what} let agents act {brief(acted)} and {brief(acted_too)}", advice)
            for agent in {*earned, *earned_too}:
                if not np.isclose(earned[agent], earned_too[agent], rtol=1e-6, atol=1e-9, equal_nan=True):
                    refuse(f"{what} pay {agent} {earned[agent]} and {earned_too[agent]}", advice)
    if not compared:
        raise NotApplicable(f"{subject.name} has no episode that ends within {CYCLES} rounds")


def _totals(player: Player, seed: int) -> tuple[dict[str, list[Any]], dict[str, float]]:
    """Return each agent's actions and its sum of rewards in one episode of at most ``CYCLES`` rounds."""
    acted: dict[str, list[Any]] = defaultdict(list)
    earned: dict[str, float] = defaultdict(float)
    player.reset(seed)
    # In the AEC form one agent acts in a move, in the parallel form all of them.
    rounds = CYCLES * (len(player.env.agents) if isinstance(player, AECPlayer) else 1)
    while not player.over and rounds:
        rounds -= 1
        for agent, action, reward in _by_agent(player, player.move()):
            earned[agent] += float(reward)
            if action is not None:
                acted[agent].append(action)
    return dict(acted), earned


def _by_agent(player: Player, moment: Moment) -> list[tuple[str, Any, Any]]:
    if isinstance(player, AECPlayer):
        agent, action = moment.acted
        return [(agent, action, moment.reward)]
    return [(agent, moment.acted.get(agent), reward) for agent, reward in moment.reward.items()]
