"""Checks of Gymnasium environments: runs Gymnasium's own checkers, and checks the spec and rendering."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.passive_env_checker import env_render_passive_checker
from gymnasium.wrappers import PassiveEnvChecker

from envweave_gym.testing.misuse_checks import expect_finite_rewards
from envweave_gym.testing.mutation_checks import cannot_render_here, is_unrenderable, no_window, without_human
from envweave_gym.testing.reproducibility_checks import MOVES, SEED, expect_same
from envweave_gym.testing.subject import (
    RAISED,
    Form,
    NotApplicable,
    Subject,
    expected,
    translated,
    without_warnings,
)
from envweave_gym.testing.traces import first_episode, has_foreign_arrays, in_numpy, plain, player_of

GYMNASIUM_ADVICE = (
    "A Box observation space minimum value is -infinity",
    "A Box observation space maximum value is infinity",
    "For Box action spaces, we recommend using a symmetric and normalized space",
)
"""Warnings of ``check_env`` that are only advice; Gymnasium ignores them for its own environments."""

WRAPPED_WARNING = "is different from the unwrapped version"
"""Warning of ``check_env`` about every wrapped environment; it is ignored."""
KNOWN_TO_GYMNASIUM = ("jax", "torch")
"""Keys of ``metadata`` for which ``check_env`` converts an environment's arrays to NumPy itself."""
FOREIGN_ARRAY_WARNINGS = ("was expecting a numpy array", "Casting input x to numpy array")
"""Warnings about arrays of other packages; they are ignored here, as :func:`check_passive_api` reports them."""
NO_SUCH_MODE = "no_such_mode"


class InNumpy(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that converts arrays of other packages to NumPy, because ``check_env`` evaluates ``bool(a == b)``."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; return observation and info with all arrays as NumPy arrays."""
        return in_numpy(self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment; return its results with all arrays as NumPy arrays."""
        return in_numpy(self.env.step(action))


def check_gymnasium_api(subject: Subject) -> None:
    """Run Gymnasium's ``check_env`` without its render check; its warnings count as failures."""
    for form in subject.forms():
        ignored = GYMNASIUM_ADVICE if form.unwrapped else (*GYMNASIUM_ADVICE, WRAPPED_WARNING)
        what = f"{form.label}: Gymnasium's check_env"
        with form.open() as player, translated(f"{what} fails"):
            env = player.env
            with warnings.catch_warnings():  # the same warnings come again from check_env, where they count
                warnings.simplefilter("ignore")
                foreign = has_foreign_arrays([player.reset(SEED), player.move()])
            if foreign and not any(env.metadata.get(key) for key in KNOWN_TO_GYMNASIUM):
                env, ignored = InNumpy(env), (*ignored, WRAPPED_WARNING, *FOREIGN_ARRAY_WARNINGS)
            with without_warnings(what, player.env, ignored):
                expect_finite_rewards(form)
                check_env(env, skip_render_check=True, skip_close_check=True)


def check_passive_api(subject: Subject) -> None:
    """Play several episodes through Gymnasium's ``PassiveEnvChecker``; its warnings count as failures."""
    for form in subject.forms():
        what = f"{form.label}: Gymnasium's passive checker"
        with form.open() as player, translated(f"{what} fails"), without_warnings(what, player.env):
            player_of(PassiveEnvChecker(player.env)).play(SEED, 2 * MOVES)


def check_spec_survives_json(subject: Subject) -> None:
    """Check that the spec makes an environment that plays the same, also after a round trip through JSON.

    ``gym.spec(ID).make`` must make the same too.
    """
    form = subject.stack()
    with form.open() as player:
        spec = player.env.spec
        if spec is None:
            raise NotApplicable(f"{subject.name} is made by a factory, which has no spec")
        trace = player.play(SEED, MOVES)
    advice = "register a string entry point and JSON kwargs"
    with translated(f"{form.label}: its spec does not go through JSON", advice):
        again = EnvSpec.from_json(spec.to_json())
    with translated(f"{form.label}: its spec makes nothing after a round trip through JSON", advice):
        rebuilt = Form(form.label, form.api, again.make)
        registered = gym.registry.get(spec.id)
        elsewhere = registered is None or registered.entry_point != spec.entry_point
        # The spec may be of an environment on a server; gym.spec(ID) would then make a local one.
        make = again.make if elsewhere else lambda: gym.spec(spec.id).make(**spec.kwargs)
        by_id = Form(form.label, form.api, make)
        with rebuilt.open() as first, by_id.open() as second:
            found, by_id = first.play(SEED, MOVES), second.play(SEED, MOVES)
    if not subject.nondeterministic:
        what = f"{form.label}: made from its spec after JSON it plays differently"
        expect_same(trace, found, what, advice)
        what = f"{form.label}: made by gym.spec({spec.id!r}).make it plays differently"
        mine, yours = (plain(first_episode(one)) for one in (trace, by_id))
        expect_same(mine, yours, what, "decide nothing outside the spec")


def check_render_modes(subject: Subject) -> None:
    """Check that every declared render mode returns the right type, and that another mode raises or warns.

    ``human`` is not tried: it opens a window, and without a display some libraries end the process.
    """
    form = subject.stack()
    with form.open() as player:
        modes, has_spec = player.env.metadata.get("render_modes"), player.env.spec is not None
    advice = 'declare metadata["render_modes"], [] where there are none'
    with translated(f"{form.label}: metadata['render_modes'] is {modes!r}", advice):
        modes = [*modes]
    if has_spec and not (subject.remote and subject.is_third_party):  # gymnasium.make warns on the server
        misuse = f"{form.label}: make(…, render_mode={NO_SUCH_MODE!r})"
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            with expected((TypeError, ValueError, AssertionError, UserWarning), misuse, advice):
                form.make(render_mode=NO_SUCH_MODE).close()
    missing = [reason for mode in without_human(modes) if (reason := _render(subject, form, mode))]
    if missing:
        raise NotApplicable("; ".join(missing))


def _render(subject: Subject, form: Form, mode: str) -> str | None:
    """Render after a reset and after a step; return a text if a package for rendering is missing, else ``None``."""
    what = f"{form.label}: render_mode={mode!r}"
    if is_unrenderable(subject, mode):
        return f"{what} cannot be tried here"
    with translated(f"{what} fails", "render() must answer after reset() and after step()"):
        try:
            with no_window(), form.open(render_mode=mode) as player, without_warnings(what, player.env):
                player.reset(SEED)
                env_render_passive_checker(player.env)
                player.move()
                env_render_passive_checker(player.env)
        except RAISED as error:
            if not cannot_render_here(subject, mode, error):
                raise
            return f"{what} needs a package that is not installed: {error}"
    return None
