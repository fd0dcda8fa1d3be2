"""Every check of the kit fails on an environment that breaks its rule, and on none that keeps it."""

from __future__ import annotations

import contextlib
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import broken_envs as broken
import broken_games
import gymnasium as gym
import numpy as np
import pytest
import stranger_envs as strangers
from absent import needs_module
from pettingzoo.utils.conversions import parallel_to_aec

import envweave_gym
from envweave_gym import testing
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.testing import (
    GAME_CHECKS,
    GYM_CHECKS,
    ConformanceError,
    NotApplicable,
    Subject,
    check_all,
    check_global_rngs_untouched,
    checks_of,
    mutation_checks,
    subject_of,
)
from envweave_gym.testing.traces import global_rngs, same
from envweave_gym.wrappers import AECStream, ParallelStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

LINE = "envweave/LineWorld-v0"


def local(factory: Callable[..., Any]) -> Subject:
    """A subject whose stack is the one every environment gets."""
    name = f"local://{getattr(factory, '__name__', 'made')}"
    envweave_gym.register(name, factory=factory)
    return subject_of(name)


def by_hand(make: Callable[..., Any], *apis: Any) -> Subject:
    """A subject whose stack is its own affair."""
    return Subject("broken", make, apis or ("gym",))


def aec(stream: type[AECStream]) -> Subject:
    return by_hand(lambda api: stream(broken_games.Duel(), name="broken"), "aec")


def rush(core: type[broken_games.Rush]) -> Subject:
    def make(api: str, **kwargs: Any) -> Any:
        env = core(**kwargs)
        return ParallelStream(env) if api == "parallel" else AECStream(parallel_to_aec(env))

    return by_hand(make, "aec", "parallel")


def unequal_forms(api: str) -> Any:
    if api == "aec":
        return AECStream(broken_games.Duel())
    return TurnBasedParallel(AECStream(broken_games.PaysMore()))


def vector_of(num_envs: int | None = None, *, spoil: Callable[..., Any], **kwargs: Any) -> Any:
    if num_envs is None:
        return envweave_gym.make(LINE, **kwargs)
    return spoil(num_envs=num_envs, **kwargs)


def other_slip(**kwargs: Any) -> Any:
    return envweave_gym.make(LINE, slip=0.2, **kwargs)


def no_vector(**kwargs: Any) -> Any:
    raise InvalidArgument("no vectors of this")


def no_limit(max_steps: int = -1, **kwargs: Any) -> Any:
    return envweave_gym.make(LINE, **kwargs)


def one_mode(autoreset_mode: str = "", **kwargs: Any) -> Any:
    return envweave_gym.make(LINE, autoreset_mode="NextStep", **kwargs)


def gymnasiums_own(vectorization_mode: str | None = None, *, which: str, **kwargs: Any) -> Any:
    """Gymnasium's own class where ``which`` vector is asked for, and ours elsewhere."""
    make_vec = gym.make_vec if vectorization_mode == which else envweave_gym.make
    return make_vec(LINE, vectorization_mode=vectorization_mode, **kwargs)


def spoiled(wrapper: Callable[[Any], Any], **kwargs: Any) -> Any:
    return wrapper(envweave_gym.make(LINE, **kwargs))


def row_by_row(wrapper: Callable[[Any], Any]) -> Subject:
    """LineWorld, whose vectors are spoiled by a wrapper of vectors."""
    return Subject(LINE, partial(vector_of, spoil=partial(spoiled, wrapper)))


def no_autoreset(autoreset: bool = False, **kwargs: Any) -> Any:
    return envweave_gym.make(LINE, **kwargs)


def autoreset_of_its_own(autoreset: bool = False, **kwargs: Any) -> Any:
    env = envweave_gym.make(LINE, **kwargs)
    return gym.wrappers.TransformReward(gym.wrappers.Autoreset(env), lambda r: r or 0.5) if autoreset else env


def pays_nan(**kwargs: Any) -> Any:
    """LineWorld with a reward that a wrapper spoils outside of our own, which would refuse it."""
    return gym.wrappers.TransformReward(envweave_gym.make(LINE, **kwargs), lambda reward: math.nan)


CASES: list[tuple[str, Callable[[], Subject], str]] = [
    ("gymnasium_api", lambda: local(broken.OwnRandomness), "super().reset(seed=seed)"),
    ("gymnasium_api", lambda: local(broken.HasSeed), "warns: Official support for the `seed` function"),
    ("passive_api", lambda: local(broken.WrongDtype), "float64"),
    ("same_seed_same_trace", lambda: local(broken.CountsCalls), "info['call'] is"),
    ("same_seed_same_trace", lambda: local(broken.SharesState), "another instance played beside it"),
    ("same_seed_same_trace", lambda: local(broken_games.SystemRandomness), "two instances differ"),
    ("different_seeds_differ", lambda: local(broken.IgnoresSeed), "play the same episode"),
    ("different_seeds_differ", lambda: local(broken.SaysItIgnoresSeed), 'take metadata["ignores_seed"] out'),
    ("same_seed_same_trace", lambda: local(broken.TakesZeroForNone), "differ on seed 0"),
    ("unseeded_resets", lambda: local(broken.FreshSeed), "is not reproducible"),
    ("unseeded_resets", lambda: local(broken.SeedsAgain), "play the same episode"),
    ("global_rngs_untouched", lambda: local(broken.DrawsNumpyGlobally), "step() draws from or seeds"),
    ("global_rngs_untouched", lambda: local(broken.SeedsGlobally), "reset() draws from or seeds"),
    ("global_rngs_untouched", lambda: local(broken.SeedsToAConstant), "generator of random and numpy.random"),
    ("global_rngs_untouched", lambda: local(broken.DrawsInConstructor), "making it draws from or seeds"),
    ("global_rngs_untouched", lambda: local(broken_games.DrawsGloballyInGame), "generator of random"),
    ("pickling_continues_the_episode", lambda: local(broken.StartsAnew), "EzPickle"),
    ("pickling_continues_the_episode", lambda: local(broken.HoldsLambda), "pickling fails in mid-episode"),
    ("pickling_continues_the_episode", lambda: local(broken_games.GameStartsAnew), "EzPickle"),
    ("deepcopy_continues_the_episode", lambda: local(broken.StartsAnew), "EzPickle"),
    ("deepcopy_continues_the_episode", lambda: local(broken.ShallowCopy), "disturbs the original"),
    ("stream_is_well_formed", lambda: local(broken.TellsArrays), "keep to JSON"),
    ("stream_is_well_formed", lambda: local(broken.TellsTuples), "keep to JSON"),
    ("stream_is_well_formed", lambda: local(broken.StartsTwice), "starts no episode"),
    ("stream_is_well_formed", lambda: local(broken.EndsEarly), "episode_end comes last"),
    ("stream_is_well_formed", lambda: by_hand(broken.bare), "info['stream'] is a Stream"),
    ("vector_equals_single", lambda: by_hand(partial(vector_of, spoil=other_slip)), "the vector form"),
    ("vector_equals_single", lambda: by_hand(partial(vector_of, spoil=no_vector)), "make(num_envs=3) fails"),
    ("vector_equals_single", lambda: by_hand(partial(vector_of, spoil=no_limit)), "the vector form"),
    ("vector_equals_single", lambda: by_hand(partial(vector_of, spoil=one_mode)), "SameStep"),
    ("vector_equals_single", lambda: local(broken.SharesState), "row 0 of"),
    ("autoreset_equals_single", lambda: by_hand(no_autoreset), "make(autoreset=True) fails: ResetNeeded"),
    ("autoreset_equals_single", lambda: by_hand(autoreset_of_its_own), "reward is"),
    (
        "vectors_refuse_misuse",
        lambda: by_hand(partial(vector_of, spoil=partial(gymnasiums_own, which="sync"))),
        "the vector with vectorization_mode='sync': step(",
    ),
    (
        "vectors_refuse_misuse",
        lambda: by_hand(partial(vector_of, spoil=partial(gymnasiums_own, which="async"))),
        "the vector with vectorization_mode='async' fails",
    ),
    ("vectors_refuse_misuse", lambda: row_by_row(broken.MovesRowByRow), "after refused calls row 0 does not"),
    ("vectors_refuse_misuse", lambda: row_by_row(broken.SeedsRowByRow), "after refused calls row 0 does not"),
    ("vectors_refuse_misuse", lambda: row_by_row(broken.Nameless), f"does not name {LINE}: no such action"),
    ("vectors_refuse_misuse", lambda: row_by_row(broken.StartsByItself), "step() before reset() raised no"),
    ("async_equals_single", lambda: local(broken.BuiltInText), "an envweave_gym.Unicode"),
    ("async_equals_single", lambda: local(broken.BuiltInTextInside), "an envweave_gym.Unicode"),
    ("observations_stay_as_given", lambda: local(broken.RewritesObservation), "was rewritten in place"),
    ("observations_stay_as_given", lambda: local(broken_games.SharesOneArray), "share one array"),
    ("observations_stay_as_given", lambda: local(broken_games.HandsOutOneArray), "share one array"),
    ("observations_stay_as_given", lambda: local(broken_games.RewritesInRush), "player_0 was rewritten"),
    ("render_changes_nothing", lambda: local(broken.DrawsNumbersToRender), "(gym): render_mode='ansi': with"),
    ("render_changes_nothing", lambda: local(broken_games.ChangesToRender), "(aec): render_mode='ansi'"),
    ("render_changes_nothing", lambda: local(broken_games.DrawsNumbersToRenderInRush), "another way than"),
    ("random_actions_never_raise", lambda: local(broken.RaisesOnTwo), "I do not like this action"),
    ("random_actions_never_raise", lambda: local(broken.LeavesItsSpace), "is not in Box"),
    ("random_actions_never_raise", lambda: by_hand(pays_nan), "the reward is nan; a reward is a finite"),
    ("gymnasium_api", lambda: by_hand(pays_nan), "the reward is nan; a reward is a finite number"),
    ("random_actions_never_raise", lambda: local(broken.PaysNaN), "local://PaysNaN: the reward nan is no"),
    ("random_actions_never_raise", lambda: local(broken_games.PaysNaNInRush), "the reward nan of player_0"),
    ("random_actions_never_raise", lambda: local(broken_games.RaisesInGame), "I do not like this action"),
    ("invalid_actions_change_nothing", lambda: by_hand(broken.bare), "instead of InvalidAction"),
    ("invalid_actions_change_nothing", lambda: by_hand(broken.impatient), "does not go on as it should"),
    ("step_needs_reset", lambda: by_hand(broken.bare), "ResetNeeded was expected"),
    ("bad_seeds_are_refused", lambda: by_hand(broken.bare), "InvalidArgument"),
    ("unknown_arguments_are_refused", lambda: local(broken.SwallowsArguments), "raised nothing"),
    ("render_modes", lambda: local(broken.RendersNothing), "render_mode='ansi'"),
    ("render_modes", lambda: local(broken.DeclaresNoModes), "metadata['render_modes'] is None"),
    ("close_twice", lambda: local(broken.ClosesOnce), "it is closed already"),
    ("aec_api", lambda: local(broken_games.NewSpaces), "exact same space object"),
    ("parallel_api", lambda: local(broken_games.NewSpacesInRush), "exact same space object"),
    ("aec_seeds", lambda: local(broken_games.SystemRandomness), "seed_test fails"),
    ("parallel_seeds", lambda: local(broken_games.SystemRandomnessInRush), "parallel_seed_test fails"),
    ("max_cycles", lambda: rush(broken_games.OneRoundTooMany), "max_cycles_test fails"),
    ("game_render_modes", lambda: local(broken_games.RendersNothingInGame), "render_test fails"),
    ("aec_and_parallel_agree", lambda: by_hand(unequal_forms, "aec", "parallel"), "pay player_"),
    ("game_stream_is_well_formed", lambda: aec(broken_games.TellsSecrets), "for others alone"),
    ("game_stream_is_well_formed", lambda: aec(broken_games.Forgetful), "episode_start"),
    ("game_stream_is_well_formed", lambda: aec(broken_games.AsksNobody), "info['active']"),
]


@pytest.mark.parametrize(
    ("name", "subject", "says"), CASES, ids=[f"{name}-{says}" for name, _, says in CASES]
)
def test_check_fails_on_a_broken_environment(name: str, subject: Callable[[], Subject], says: str) -> None:
    with pytest.raises(ConformanceError) as failure:
        getattr(testing, f"check_{name}")(subject())
    assert says in str(failure.value)


def test_every_check_has_a_broken_environment() -> None:
    checks = {check.__name__.removeprefix("check_") for check in (*GYM_CHECKS, *GAME_CHECKS)}
    assert checks == {"spec_survives_json", *(name for name, _, _ in CASES)}


def test_every_check_is_public() -> None:
    listed = {check.__name__ for check in (*GYM_CHECKS, *GAME_CHECKS)}
    assert listed == {name for name in vars(testing) if name.startswith("check_")} - {"check_all"}
    assert set(GYM_CHECKS) - set(GAME_CHECKS)


@pytest.fixture
def registered() -> Iterator[None]:
    """IDs of this module alone, which no other test shall see."""
    before = dict(gym.registry)
    gym.register("broken/Walk-v0", entry_point="broken_envs:Walk")
    gym.register("broken/Callable-v0", entry_point=broken.Walk)
    gym.register("broken/Set-v0", entry_point="broken_envs:TakesOrigin", kwargs={"origin": {1, 2}})
    yield
    for env_id in gym.registry.keys() - before.keys():
        del gym.registry[env_id]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("env_id", ["broken/Callable-v0", "broken/Set-v0"])
def test_spec_check_fails_on_values_that_are_no_json(env_id: str) -> None:
    with pytest.raises(ConformanceError, match="register a string entry point and JSON kwargs"):
        testing.check_spec_survives_json(subject_of(env_id))


@pytest.mark.usefixtures("registered")
def test_good_environment_passes_every_check() -> None:
    became = check_all("broken_envs:broken/Walk-v0")
    assert became == {check.__name__.removeprefix("check_"): "passed" for check in GYM_CHECKS}


@pytest.mark.parametrize("core", [broken_games.Duel, broken_games.Compass, broken_games.Rush])
def test_good_game_passes_every_check_that_applies(core: type[Any]) -> None:
    became = check_all(local(core).name)
    applied = {name for name, outcome in became.items() if outcome == "passed"}
    missing = set() if core is broken_games.Rush else {"max_cycles"}
    assert applied == {check.__name__.removeprefix("check_") for check in GAME_CHECKS} - missing


def failures(factory: Callable[..., Any]) -> dict[str, str]:
    """What every check says that fails."""
    name = local(factory).name
    with pytest.raises(ConformanceError) as failure:
        check_all(name)
    return dict(line.split(": ", 1) for line in str(failure.value).split("\n- ")[1:])


def same_cause(text: str) -> list[str]:
    """The other checks that failed for the same cause."""
    return text.partition("(for the same cause: ")[2].rstrip(")").split(", ") if "same cause" in text else []


@pytest.mark.parametrize(
    ("core", "name"),
    [
        (broken.DrawsNumbersToRender, "render_changes_nothing"),
        (broken_games.ChangesToRender, "render_changes_nothing"),
        (broken_games.DrawsNumbersToRenderInRush, "render_changes_nothing"),
        (broken_games.SharesOneArray, "observations_stay_as_given"),
        (broken_games.HandsOutOneArray, "observations_stay_as_given"),
        (broken_games.RewritesInRush, "observations_stay_as_given"),
    ],
)
def test_a_defect_without_a_trace_fails_only_its_own_check(core: type[Any], name: str) -> None:
    assert [*failures(core)] == [name]


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's vectors warn of what they raise
@pytest.mark.parametrize("core", [broken.PaysNaN, broken_games.PaysNaNInRush])
def test_reward_of_nan_is_one_failure_that_says_so(core: type[Any]) -> None:
    (text,) = failures(core).values()
    assert f"ValueError: local://{core.__name__}: the reward nan " in text
    assert "is no finite number" in text
    assert "random_actions_never_raise" in same_cause(text)


def test_nan_in_an_info_is_no_difference() -> None:
    testing.check_same_seed_same_trace(local(broken.TellsNaN))
    testing.check_vector_equals_single(local(broken.TellsNaN))


def test_max_cycles_is_checked_where_it_can_be_reached() -> None:
    testing.check_max_cycles(rush(broken_games.Rush))
    with pytest.raises(NotApplicable, match="no argument max_cycles"):
        testing.check_max_cycles(local(broken_games.Duel))


def test_nondeterministic_environment_is_not_compared() -> None:
    subject = local(broken.FreshSeed)
    with pytest.raises(NotApplicable, match="declared nondeterministic"):
        testing.check_unseeded_resets(Subject(subject.name, subject.make, nondeterministic=True))


def test_check_all_names_every_failure_at_once() -> None:
    envweave_gym.register("local://StartsAnew", factory=broken.StartsAnew)
    with pytest.raises(ConformanceError) as failure:
        check_all("local://StartsAnew")
    text = str(failure.value)
    assert text.startswith("local://StartsAnew: 2 of 23 checks fail")
    assert "\n- pickling_continues_the_episode: " in text
    assert "\n- deepcopy_continues_the_episode: " in text


# What environments of other packages have


@pytest.mark.parametrize("core", [strangers.OpensWindows, strangers.DuelInAWindow])
def test_no_check_opens_a_window(core: type[Any]) -> None:
    became = check_all(local(core).name)
    rendered = "render_modes" if core is strangers.OpensWindows else "game_render_modes"
    assert (became[rendered], became["render_changes_nothing"]) == ("passed", "passed")


def test_an_environment_without_randomness_need_not_say_so() -> None:
    with pytest.raises(NotApplicable, match="draws no random numbers"):
        testing.check_different_seeds_differ(local(strangers.Deterministic))
    assert "no random numbers" in check_all("local://Deterministic")["different_seeds_differ"]


def test_random_numbers_from_which_nothing_follows_are_no_failure_if_seeds_reach_them() -> None:
    with pytest.raises(NotApplicable, match="seeds reach their generator"):
        testing.check_different_seeds_differ(local(strangers.DrawsForNothing))
    with pytest.raises(ConformanceError, match="ignores_seed"):
        testing.check_different_seeds_differ(local(strangers.SeedsWithConstant))


def test_comparisons_of_episodes_fail_for_the_cause_that_one_seed_plays_differently() -> None:
    failures = testing.runs.Failures()
    cause = testing.subject.TracesDiffer("one seed differs")
    assert failures.add("spec_survives_json", testing.subject.TracesDiffer("its spec differs")) is None
    assert failures.add("same_seed_same_trace", cause) is None
    assert (
        failures.add("render_changes_nothing", testing.subject.TracesDiffer("rendered"))
        == "same_seed_same_trace"
    )
    assert failures.add("close_twice", ConformanceError("another cause")) is None


def test_an_id_of_a_suite_in_a_python_of_its_own_is_of_another_package() -> None:
    assert Subject("Some-v0", broken.Walk, in_suite=True).is_third_party
    assert not Subject("Some-v0", broken.Walk).is_third_party
    assert not Subject(LINE, broken.Walk).is_third_party


class LongRush(broken_games.Rush):
    def limit(self) -> int:
        return 200


def test_forms_of_a_game_are_compared_in_episodes_that_end() -> None:
    testing.check_aec_and_parallel_agree(rush(broken_games.Rush))
    with pytest.raises(NotApplicable, match="no episode that ends"):
        testing.check_aec_and_parallel_agree(rush(LongRush))


class NeedsOpenGL(broken.Walk):
    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}
    rendered = 0

    def render(self) -> Any:
        NeedsOpenGL.rendered += 1
        raise RuntimeError("an OpenGL platform library has not been loaded into this process")


def test_a_missing_display_is_no_failure_of_other_packages_and_is_met_once() -> None:
    subject = Subject("Some-v0", partial(envweave_gym.make, local(NeedsOpenGL).name), in_suite=True)
    with pytest.raises(NotApplicable, match="OpenGL"):
        testing.check_render_modes(subject)
    assert NeedsOpenGL.rendered == 1
    with pytest.raises(NotApplicable, match="no render mode that can be tried here"):
        testing.check_render_changes_nothing(subject)
    assert NeedsOpenGL.rendered == 1
    with pytest.raises(ConformanceError, match="OpenGL"):
        testing.check_render_modes(local(NeedsOpenGL))


@pytest.mark.parametrize(
    ("text", "is_missing"),
    [
        ("the GLOBAL limit is reached", False),
        ("SINGLE is no mode", False),
        ("the display name is too long", False),
        ("GLFWError: the GLFW library is not initialized", True),
        ("mujoco: gladLoadGL error", True),
        ("no display name and no $DISPLAY environment variable", True),
        ("Unable to load EGL library", True),
        ("GLException: (0x500) invalid enumerant", True),
        ("libGL.so.1: cannot open shared object file", True),
        ('Library "GLU" not found.', True),
        ("couldn't connect to display", True),
    ],
)
def test_only_a_missing_package_or_display_keeps_a_mode_from_being_rendered(
    text: str, is_missing: bool
) -> None:
    subject = Subject("Some-v0", partial(envweave_gym.make, local(NeedsOpenGL).name), in_suite=True)
    assert mutation_checks.cannot_render_here(subject, "ansi", RuntimeError(text)) == is_missing


def test_copies_of_ids_of_other_packages_are_advice(registered: None) -> None:
    gym.register("broken/Anew-v0", entry_point="broken_envs:StartsAnew")
    became = check_all("broken/Anew-v0")
    for way in ("pickling", "deepcopy"):
        assert became[f"{way}_continues_the_episode"].startswith("advisory")
    with pytest.raises(ConformanceError):
        testing.check_pickling_continues_the_episode(local(broken.StartsAnew))


def test_warnings_of_other_packages_are_no_failures() -> None:
    subject = local(strangers.OldLibrary)
    testing.check_gymnasium_api(subject)
    testing.check_passive_api(subject)
    testing.check_render_modes(subject)
    with pytest.raises(ConformanceError, match="drawn badly"):
        testing.check_render_modes(local(strangers.WarnsItself))


def test_an_error_in_every_episode_is_one_failure() -> None:
    with pytest.raises(ConformanceError) as failure:
        check_all(local(strangers.NoOptions).name)
    text = str(failure.value)
    assert "local://NoOptions" in text.splitlines()[0]
    assert "reset(self, *, seed=None, options=None)" in text.splitlines()[0]
    assert len(text.splitlines()) == 1


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's vectors warn of what they raise
def test_checks_that_fail_for_one_cause_are_one_failure() -> None:
    found = failures(strangers.RaisesAbove)
    reported = [text for text in found.values() if "I do not like" in text]
    assert len(reported) <= 2, "one in this process, and one that came out of another with another text"
    assert len(same_cause(reported[0])) > 5


def test_arrays_of_other_packages_are_compared() -> None:
    testing.check_same_seed_same_trace(local(strangers.TellsForeignArrays))
    testing.check_gymnasium_api(local(strangers.SeesForeignArrays))
    testing.check_gymnasium_api(local(strangers.TellsForeignArrays))
    one, other = strangers.ForeignArray([1, 2]), strangers.ForeignArray([1, 3])
    assert same(one, strangers.ForeignArray([1, 2]))
    assert not same(one, other)


@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("envweave/Echo_v0", "envweave/Echo-v0"),
        ("envweave/KuhnPoker", "envweave/KuhnPoker-v0"),
        ("envweave_gym:envweave/LineRace", "envweave/LineRace-v0"),
    ],
)
def test_ids_are_held_to_the_same_however_they_are_spelled(name: str, env_id: str) -> None:
    subject, exact = subject_of(name), subject_of(env_id)
    assert (subject.env_id, subject.is_launched) == (env_id, True)
    assert (subject.apis, subject.nondeterministic) == (exact.apis, exact.nondeterministic)
    assert checks_of(subject) == checks_of(exact)
    testing.check_unknown_arguments_are_refused(subject)


def test_environments_from_elsewhere_are_not_held_to_what_the_table_promises() -> None:
    cart_pole, walk = subject_of("CartPole"), local(broken.Walk)
    assert (cart_pole.env_id, cart_pole.is_launched) == ("CartPole-v1", False)
    assert (walk.env_id, walk.is_launched) == (None, False)


def test_check_all_passes_arguments_on() -> None:
    with pytest.raises(InvalidArgument, match="length=1 is not a line"):
        check_all("envweave/LineWorld-v0", length=1)


def test_seeding_to_a_constant_is_noticed_however_often_it_was_done_before() -> None:
    random.seed(42)
    np.random.seed(42)
    with pytest.raises(ConformanceError, match="seeds the global generator of random and numpy"):
        check_global_rngs_untouched(local(broken.SeedsToAConstant))


def test_checks_leave_the_global_generators_alone() -> None:
    before = global_rngs()
    check_all("envweave/LineWorld-v0")
    assert global_rngs() == before


def test_global_generator_of_torch_is_watched() -> None:
    needs_module("torch", "train")
    program = (
        "import torch, broken_envs, envweave_gym\n"
        "from envweave_gym.testing import ConformanceError, check_global_rngs_untouched, subject_of\n"
        "class Draws(broken_envs.Walk):\n"
        "    def step(self, action):\n"
        "        torch.rand(1)\n"
        "        return super().step(action)\n"
        "envweave_gym.register('local://draws', factory=Draws)\n"
        "try: check_global_rngs_untouched(subject_of('local://draws'))\n"
        "except ConformanceError as error: assert 'the global generator of torch' in str(error)\n"
        "else: raise SystemExit('nothing was noticed')\n"
    )
    command = [sys.executable, "-c", program]
    here = Path(__file__).parents[1] / "support"
    run = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr


def test_functions_need_no_pytest() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "from envweave_gym.testing import check_all\n"
        "assert 'passed' in check_all('envweave/LineWorld-v0').values()\n"
        "assert 'passed' in check_all('envweave/KuhnPoker-v0').values()\n"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr


def test_on_ray_no_fork_is_tried() -> None:
    asked = (None, ("fork", "forkserver"))
    subjects = [subject_of(LINE, backend="ray", start_methods=methods) for methods in asked]
    assert [subject.start_methods for subject in subjects] == [("spawn",), ("forkserver",)]


def test_an_id_of_another_package_passes_on_a_server_too() -> None:
    subject = subject_of("CartPole-v1", backend="subprocess")
    testing.check_spec_survives_json(subject)
    testing.check_unseeded_resets(subject)
    with contextlib.suppress(NotApplicable):  # drawing needs pygame
        testing.check_render_modes(subject)
