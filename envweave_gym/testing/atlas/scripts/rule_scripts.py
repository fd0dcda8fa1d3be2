"""The rules of the atlas: each function is the body of a script; an ``AssertionError`` means that the rule is broken.

The first sentence of a docstring says what a well-behaved environment does. ``moves`` is the number of moves of an
episode that is played; a smaller number makes a shorter reproduction. A rule that does not concern an environment
calls ``skip``.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import re
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np

from envweave_gym.testing.atlas.scripts.gym_player import PARTS, checker, each, make, play, spaces_of
from envweave_gym.testing.atlas.scripts.shared import parts


def skip(reason: str) -> None:
    """End the script: its rule does not concern this environment."""
    sys.stdout.flush()
    print(reason, file=sys.stderr)
    sys.exit(77)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, with their arrays; NaN equals NaN."""
    try:
        np.testing.assert_equal(one, other)
    except AssertionError:
        return False
    return True


def expect_same(one: list[Any], other: list[Any], what: str) -> None:
    """Fail if two traces differ, and name the first move and the part of its result."""
    for number, pair in enumerate(zip(one, other)):  # noqa: B905 - no strict= before Python 3.10
        for name, mine, yours in zip(PARTS, *map(parts, pair)):  # noqa: B905
            assert same(mine, yours), f"{what}: the {name} of move {number} differs"


def arrays(value: Any) -> list[Any]:
    """Return the arrays in a value that can be written to."""
    if isinstance(value, np.ndarray):
        return [value] if value.flags.writeable and value.size else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [array for one in inner for array in arrays(one)]


def contract(moves: int) -> None:
    """Observations are in their space, rewards are finite numbers, ends are bools, infos are dicts."""
    env = make()
    for seed in range(3):
        for number, result in enumerate(play(env, seed, moves)):
            observation, reward, ended, cut, info = parts(result)
            where = f"move {number}"
            for space, one in spaces_of(env, observation):
                assert one in space, f"the observation of {where} is not in its space {str(space)[:150]}"
            for one in each(reward):
                assert np.isfinite(np.asarray(one, float)).all(), f"the reward of {where} is {one}"
            for one in [*each(ended), *each(cut)]:
                assert isinstance(one, (bool, np.bool_)), f"an end of {where} is {one!r}, not a bool"
            assert isinstance(info, dict), f"the info of {where} is of the type {type(info).__name__}"
    env.close()


def scalar_rewards(moves: int) -> None:
    """A reward is one number; in a game, that of each agent is."""
    for number, result in enumerate(play(make(), 7, moves)):
        for one in each(parts(result)[1]):
            assert np.ndim(one) == 0, f"the reward of move {number} has the shape {np.shape(one)}"


def own_checker(moves: int) -> None:
    """The checker of Gymnasium, or the API test of PettingZoo, accepts the environment."""
    checker(make())


def unseeded_start(moves: int) -> None:
    """An environment starts without a seed, several times."""
    env = make()
    for _ in range(5):
        env.reset()
    env.close()


def same_seed(moves: int) -> None:
    """One seed and the same actions give the same episode, on two instances."""
    expect_same(play(make(), 7, moves), play(make(), 7, moves), "two instances play one seed differently")
    expect_same(play(make(), 0, moves), play(make(), 0, moves), "two instances play seed 0 differently")


def same_seed_again(moves: int) -> None:
    """One seed and the same actions give the same episode, on one instance that has played others in between."""
    env = make()
    first = [play(env, seed, moves) for seed in range(6)]
    for seed in range(6):
        what = f"after other episodes it plays seed {seed} differently"
        expect_same(first[seed], play(env, seed, moves), what)


def beside_another(moves: int) -> None:
    """An instance plays the same episode while another instance plays beside it."""
    other = make()
    beside = play(make(), 7, moves, before_each=lambda _: play(other, 8, 1))
    expect_same(play(make(), 7, moves), beside, "it plays differently beside another instance")


def different_seeds(moves: int) -> None:
    """Different seeds give different episodes, or at least different states of the environment's generators."""
    env = make()

    def generators() -> list[str]:
        found: list[str] = []
        for one in vars(env.unwrapped).values():
            if isinstance(one, np.random.Generator):
                found.append(repr(one.bit_generator.state))
            elif isinstance(one, np.random.RandomState):
                found.append(repr(one.get_state()))
            elif type(one) is random.Random:
                found.append(repr(one.getstate()))
        return found

    states: list[list[str]] = []
    drawn: list[list[str]] = []
    first = play(env, 0, moves)
    for seed in range(1, 20):
        one = play(env, seed, moves)
        if not all(same(a[:-1], b[:-1]) for a, b in zip(map(parts, first), map(parts, one))):  # noqa: B905
            return
        drawn.append(generators())
        env.reset(seed=seed)
        states.append(generators())
    if drawn == states:
        skip("20 seeds play the same episode, and it draws no random numbers")
    if states[0] != states[1]:
        skip("20 seeds play the same episode, although they reach its random generator")
    raise AssertionError("20 seeds play the same episode, although it draws random numbers")


def unseeded_reset(moves: int) -> None:
    """A reset without a seed follows from the last seed that was given."""
    traces: list[Any] = []
    for _ in range(2):
        env = make()
        env.reset(seed=7)
        traces.append(play(env, None, moves))
    expect_same(traces[0], traces[1], "reset() after reset(seed=7) starts differently on two instances")


def global_generators(moves: int) -> None:
    """The process-wide random generators are neither drawn from nor seeded."""
    make().close()  # what an import draws is not counted
    torch: Any = sys.modules.get("torch")

    def states() -> dict[str, bytes]:
        found = {
            "random": pickle.dumps(random.getstate()),
            "numpy.random": pickle.dumps(np.random.get_state()),
        }
        if torch is not None:
            found["torch"] = torch.get_rng_state().numpy().tobytes()
        return found

    def expect_untouched(call: str) -> None:
        moved = [name for name, state in states().items() if state != before[name]]
        assert not moved, f"{call} draws from or seeds the global generator of {' and '.join(moved)}"

    random.seed()
    np.random.seed()
    before = states()
    env = make()
    expect_untouched("making it")
    env.reset(seed=7)
    expect_untouched("reset()")
    play(env, 7, moves)
    expect_untouched("step()")
    env.close()
    expect_untouched("close()")


def fresh_observations(moves: int) -> None:
    """Later moves neither write to an observation that was returned earlier, nor return its array again."""
    seen = play(make(), 7, moves, keep=lambda result: (result, copy.deepcopy(result)))
    returned: dict[int, int] = {}
    for number, (result, was) in enumerate(seen):
        found = f"the observation of move {number}"
        assert same(parts(result)[0], parts(was)[0]), f"{found} is rewritten in place by a later move"
        for array in arrays(parts(result)[0]):
            earlier = returned.setdefault(id(array), number)
            assert earlier == number, f"{found} has the very array that move {earlier} returned"


def fresh_infos(moves: int) -> None:
    """Later moves do not write to an info that was returned earlier."""
    seen = play(make(), 7, moves, keep=lambda result: (result, copy.deepcopy(result)))
    for number, (result, was) in enumerate(seen):
        mine, yours = parts(result)[-1], parts(was)[-1]
        assert same(mine, yours), f"the info of move {number} is rewritten in place by a later move"


def render_changes_nothing(moves: int) -> None:
    """With rendering an episode is the same as without."""
    env = make()
    modes = [mode for mode in env.metadata.get("render_modes") or [] if mode != "human"]
    unseen = play(env, 7, moves)
    env.close()
    tried: list[str] = []
    for mode in modes:
        try:
            env = make(render_mode=mode)
            drawn = play(
                env, 7, moves, before_each=lambda env: env.render() if getattr(env, "agents", 1) else None
            )
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            package = r"DependencyNotInstalled|No module named|ImportError"
            display = r"NoSuchDisplay|(open|connect to) (the )?display|DISPLAY\b"
            opengl = r"OpenGL|\b(lib)?GLU?\b|\b(lib)?(EGL|GLX|GLFW|GLEW|GLUT|GLE(rr|xc))|gladLoadGL|OSMesa"
            if re.search(f"{package}|{display}|{opengl}", reason):
                skip(f"it cannot render here: {reason}")
            raise
        expect_same(unseen, drawn, f"with render_mode={mode!r} the episode goes another way than without")
        env.close()
        tried.append(mode)
    if not tried:
        skip("it has no render mode but 'human'")


def closes_twice(moves: int) -> None:
    """An environment can be closed before its first reset, in mid-episode, and again."""
    for played in (False, True):
        env = make()
        if played:
            play(env, 7, 1)
        env.close()
        env.close()


def leaves_nothing(moves: int) -> None:
    """A closed environment leaves no processes, threads, descriptors or temporary files."""
    temporary = tempfile.mkdtemp(dir=tempfile.gettempdir())
    tempfile.tempdir = os.environ["TMPDIR"] = temporary

    def counts() -> dict[str, int]:
        gc.collect()
        children = 0
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children") as file:
                children += len(file.read().split())
        return {
            "child processes": children,
            "threads": threading.active_count(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "temporary files": sum(len(files) + len(folders) for _, folders, files in os.walk(temporary)),
        }

    def cycle() -> None:
        env = make()
        play(env, 7, moves)
        env.close()

    cycle()
    cycle()  # what is loaded once may stay
    before = counts()
    for _ in range(4):
        cycle()
    deadline = time.monotonic() + 5
    while any(n >= before[name] + 4 for name, n in counts().items()) and time.monotonic() < deadline:
        time.sleep(0.1)  # processes and threads may take a moment to end
    for name, number in counts().items():
        grown = number - before[name]
        assert grown < 4, f"4 environments that were closed leave {grown} {name}"


def gives_memory_back(moves: int) -> None:
    """Environments that are made, played and closed do not use more and more memory."""

    def resident_mb() -> float:
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def cycle() -> None:
        env = make()
        play(env, 7, moves)
        env.close()

    cycle()
    start = time.monotonic()
    cycle()
    number = int(min(6, max(2, 0.4 / (time.monotonic() - start))))
    grown: list[float] = []
    for _ in range(6):
        before = resident_mb()
        for _ in range(number):
            cycle()
        grown.append((resident_mb() - before) / number)
    least = min(grown[2:])  # caches may fill in the first two
    assert least < 0.1, f"each environment that was closed leaves at least {least:.1f} MB"
