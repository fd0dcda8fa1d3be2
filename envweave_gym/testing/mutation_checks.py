"""Checks that rendering does not change the episode, and that steps do not write to earlier observations.

They apply to Gymnasium and to PettingZoo environments.
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from envweave_gym.core.faults import NotAvailable
from envweave_gym.testing.reproducibility_checks import MOVES, SEED, expect_same
from envweave_gym.testing.subject import RAISED, Form, NotApplicable, Subject, refuse, translated
from envweave_gym.testing.traces import Player, brief, same

_OPENGL = re.compile(r"OpenGL|\b(lib)?GLU?\b|\b(lib)?(EGL|GLX|GLFW|GLEW|GLUT|GLE(rr|xc))|gladLoadGL|OSMesa")
_MISSING = re.compile(
    r"DependencyNotInstalled|ModuleNotFoundError|No module named|NoSuchDisplay|(open|connect to) (the )?display"
    rf"|\$DISPLAY|DISPLAY environment|{_OPENGL.pattern}"
)
"""Names of exceptions and libraries in texts that say that there is no package or no display to render with."""
ALL_MODES = "*"
"""Stands for all modes of an environment: OpenGL that has failed once may end the process the next time."""
FRESH = "return fresh arrays at every step, and to every agent its own (observation.copy())"


def check_observations_stay_as_given(subject: Subject) -> None:
    """Check that later steps do not change an observation, and that two agents' observations share no memory.

    A learner stores observations: if ``step`` writes to an old array, the stored data is wrong.
    """
    for form in subject.forms():
        retained: list[tuple[str, Any, Any]] = []

        def look(player: Player, form: Form = form, retained: list[tuple[str, Any, Any]] = retained) -> None:
            seen = player.observed()
            _expect_apart(form, seen)
            retained.extend((agent, given, copy.deepcopy(given)) for agent, given in seen.items())

        with form.open() as player:
            player.play(SEED, MOVES, before_each=look)
        for agent, given, was in retained:
            if not same(given, was):
                what = f"{form.label}: the observation {brief(was)} of {agent} was rewritten in place later"
                refuse(f"{what}, and is {brief(given)} now", FRESH)


def _expect_apart(form: Form, seen: Mapping[str, Any]) -> None:
    __tracebackhide__ = True
    for (agent, mine), (other, yours) in combinations(seen.items(), 2):
        if any(np.shares_memory(a, b) for a in _writeable(mine) for b in _writeable(yours)):
            refuse(f"{form.label}: the observations of {agent} and {other} share one array", FRESH)


def _writeable(observation: Any) -> Iterator[NDArray[Any]]:
    """Yield the writeable arrays inside an observation."""
    if isinstance(observation, np.ndarray):
        if observation.flags.writeable:
            yield observation
    elif isinstance(observation, Mapping):
        for inner in observation.values():
            yield from _writeable(inner)
    elif isinstance(observation, tuple | list):
        for inner in observation:
            yield from _writeable(inner)


def check_render_changes_nothing(subject: Subject) -> None:
    """Check that an episode with ``render`` before every move is the same as without, in every render mode.

    ``human`` is left out: it opens a window, and draws at the speed of a human viewer.
    """
    subject.needs_determinism()
    tried = [_expect_only_read(subject, form, mode) for form in subject.stacks() for mode in _modes(form)]
    if not any(tried):
        raise NotApplicable(f"{subject.name} has no render mode that can be tried here")


def _modes(form: Form) -> list[str]:
    with form.open() as player:
        return without_human(player.env.metadata.get("render_modes") or [])


def without_human(modes: Iterable[str]) -> list[str]:
    """Return the render modes except ``human``, which needs a display."""
    return [mode for mode in modes if mode != "human"]


def cannot_render_here(subject: Subject, mode: str, error: BaseException) -> bool:
    """Return whether rendering failed for a package or a display that is missing here; later checks leave it out.

    IDs without a card may say so with any exception; those with one must use Gymnasium's or ours.
    """
    text = f"{type(error).__name__}: {error}"
    missing = isinstance(error, DependencyNotInstalled | NotAvailable) or (
        subject.is_third_party and _MISSING.search(text) is not None
    )
    if missing:
        subject.unrenderable.add(ALL_MODES if _OPENGL.search(text) else mode)
    return missing


def is_unrenderable(subject: Subject, mode: str) -> bool:
    """Return whether an earlier check has found that this render mode cannot be tried here."""
    return not subject.unrenderable.isdisjoint((mode, ALL_MODES))


def _expect_only_read(subject: Subject, form: Form, mode: str) -> bool:
    """Fail if rendering changes the episode; return ``False`` if the packages for rendering are missing."""
    __tracebackhide__ = True
    if is_unrenderable(subject, mode):
        return False
    what = f"{form.label}: render_mode={mode!r}"
    with form.open() as player:
        unseen = player.play(SEED, MOVES)
    with translated(f"{what} fails", "render() must answer after reset() and after step()"):
        try:
            with no_window(), warnings.catch_warnings(action="ignore"), form.open(render_mode=mode) as player:
                drawn = player.play(SEED, MOVES, before_each=_render)
        except RAISED as error:
            if not cannot_render_here(subject, mode, error):
                raise
            return False
    what = f"{what}: with rendering the episode goes another way than without"
    expect_same(unseen, drawn, what, "let render() read the state, and neither change it nor draw numbers")
    return True


def _render(player: Player) -> None:
    if not player.over:
        player.env.render()


@contextmanager
def no_window() -> Generator[None]:
    """Let pygame draw without a screen, and restore the environment variable on exit."""
    before = os.environ.get("SDL_VIDEODRIVER")
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    try:
        yield
    finally:
        if before is None:
            del os.environ["SDL_VIDEODRIVER"]
        else:
            os.environ["SDL_VIDEODRIVER"] = before
