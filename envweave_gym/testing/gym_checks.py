"""The checks of Gymnasium environments: Gymnasium's own, the spec, and rendering."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.passive_env_checker import env_render_passive_checker
from gymnasium.wrappers import PassiveEnvChecker

from envweave_gym.core.faults import NotAvailable
from envweave_gym.testing.misuse_checks import expect_finite_rewards
from envweave_gym.testing.seed_checks import MOVES, SEED, expect_same
from envweave_gym.testing.side_effect_checks import no_window, without_human
from envweave_gym.testing.subject import Form, NotApplicable, Subject, expected, translated, without_warnings
from envweave_gym.testing.traces import first_episode, has_foreign_arrays, in_numpy, plain, player_of

GYMNASIUM_ADVICE = (
    "A Box observation space minimum value is -infinity",
    "A Box observation space maximum value is infinity",
    "For Box action spaces, we recommend using a symmetric and normalized space",
)
"""What ``check_env`` says of a space as advice; Gymnasium ignores these for its own environments."""

OF_THE_STACK = "is different from the unwrapped version"
KNOWN_TO_GYMNASIUM = ("jax", "torch")
"""Keys of ``metadata`` by which ``check_env`` turns the arrays of an environment to NumPy itself."""
OF_FOREIGN_ARRAYS = ("was expecting a numpy array", "Casting input x to numpy array")
"""What the passive checker says of arrays that are not NumPy's: the check of that name tells it."""
NO_SUCH_MODE = "no_such_mode"


class InNumpy(gym.Wrapper[Any, Any, Any, Any]):
    """Turns other packages' arrays to NumPy: ``check_env`` does ``bool(a == b)``, which they refuse."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As the environment does it."""
        return in_numpy(self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment does it."""
        return in_numpy(self.env.step(action))


def check_gymnasium_api(subject: Subject) -> None:
    """Gymnasium's ``check_env``, with its warnings as failures; rendering has a check of its own."""
    for form in subject.forms():
        ignored = GYMNASIUM_ADVICE if form.unwrapped else (*GYMNASIUM_ADVICE, OF_THE_STACK)
        what = f"{form.label}: Gymnasium's check_env"
        with form.open() as player, translated(f"{what} fails"):
            env = player.env
            with warnings.catch_warnings():  # check_env resets and steps again, and then they count
                warnings.simplefilter("ignore")
                foreign = has_foreign_arrays([player.reset(SEED), player.move()])
            if foreign and not any(env.metadata.get(key) for key in KNOWN_TO_GYMNASIUM):
                env, ignored = InNumpy(env), (*ignored, OF_THE_STACK, *OF_FOREIGN_ARRAYS)
            with without_warnings(what, player.env, ignored):
                expect_finite_rewards(form)
                check_env(env, skip_render_check=True, skip_close_check=True)


def check_passive_api(subject: Subject) -> None:
    """Gymnasium's passive checker around several episodes, with its warnings as failures."""
    for form in subject.forms():
        what = f"{form.label}: Gymnasium's passive checker"
        with form.open() as player, translated(f"{what} fails"), without_warnings(what, player.env):
            player_of(PassiveEnvChecker(player.env)).play(SEED, 2 * MOVES)


def check_spec_survives_json(subject: Subject) -> None:
    """The spec goes through JSON and still makes the same environment; so does the ID alone."""
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
        # the ID alone makes an environment of this process, where the spec is of one on a server
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
    """Every declared render mode gives what Gymnasium expects of it; another is refused, or warned of.

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
    missing = [reason for mode in without_human(modes) if (reason := _render(form, mode))]
    if missing:
        raise NotApplicable("; ".join(missing))


def _render(form: Form, mode: str) -> str | None:
    """Render after a reset and after a step; what must be installed for it, where something is missing."""
    what = f"{form.label}: render_mode={mode!r}"
    with translated(f"{what} fails", "render() must answer after reset() and after step()"):
        try:
            with no_window(), form.open(render_mode=mode) as player, without_warnings(what, player.env):
                player.reset(SEED)
                env_render_passive_checker(player.env)
                player.move()
                env_render_passive_checker(player.env)
        except (DependencyNotInstalled, NotAvailable) as error:
            return f"{what} needs what is not installed: {error}"
    return None
