"""Of a lost episode the counters and the last picture are left, for wrappers that draw within a step too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import RecordVideo, RenderCollection
from remote_rows import MORTAL
from remote_worlds import TROUBLE, kill, mortal, url
from servers import running_server

import envweave_gym as ew
from envweave_gym.providers.subprocess import PrivateServer
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.env import RemoteEnv
from envweave_gym.remote.games import RemoteAEC
from envweave_gym.remote.vector import RemoteVectorEnv

__all__ = ["mortal", "url"]
LINE, KUHN = "envweave/LineWorld-v0", "envweave/KuhnPoker-v0"
NOWHERE = "http://127.0.0.1:9"


def drawn(server: PrivateServer, **kwargs: Any) -> Any:
    return gym.make(LINE, backend=server.url, render_mode="rgb_array", length=50, slip=0.0, **kwargs)


# Counters


def test_the_counters_of_a_lost_episode_are_those_of_one_lost_here(mortal: PrivateServer) -> None:
    here, there = ew.make(TROUBLE, on_fault="truncate"), ew.make(TROUBLE, backend=mortal.url)
    states: list[list[Any]] = []
    for env, lose in ((here, lambda: None), (there, lambda: kill(mortal))):
        reported = [ew.state_of(env)]
        for _ in range(2):
            env.reset(seed=1)
            env.step(0)
            lose()
            assert env.step(1)[3]
            reported.append(ew.state_of(env))
        env.reset()
        reported.append(ew.state_of(env))
        states.append([{name: state[name] for name in ("episode", "step_count")} for state in reported])
        env.close()
    assert states[0] == states[1]
    assert states[1][1:3] == [{"episode": 0, "step_count": 2}, {"episode": 1, "step_count": 2}]


def test_a_state_that_finds_out_gives_the_counters_and_the_step_tells(mortal: PrivateServer) -> None:
    env = RemoteEnv(LINE, mortal.url, length=50)
    env.reset(seed=1)
    env.step(1)
    kill(mortal)
    assert ew.state_of(env) == {"episode": 0, "step_count": 1}
    assert env.step(1)[4]["fault"].kind is ew.FaultKind.LOST
    assert ew.state_of(env) == {"episode": 0, "step_count": 2}
    env.close()


def test_the_counters_of_lost_rows_go_on_with_the_next_session(mortal: PrivateServer, url: str) -> None:
    env = RemoteVectorEnv(LINE, [url, mortal.url], num_envs=2, length=50, autoreset_mode="Disabled")
    env.reset(seed=1)
    kill(mortal)
    over = env.step([1, 1])[3]
    assert over.tolist() == [False, True]
    state = ew.state_of(env)
    assert (state[0]["step_count"], state[0]["episode"]) == (1, 0)
    assert state[1] == {"episode": 0, "step_count": 1}
    env.reset(options={"reset_mask": over})
    env.step([1, 1])
    assert [(row["episode"], row["step_count"]) for row in ew.state_of(env)] == [(0, 2), (1, 1)]
    env.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_rows_that_reset_themselves_are_counted_as_here(mode: str, mortal: PrivateServer) -> None:
    how: dict[str, Any] = {"num_envs": 2, "autoreset_mode": mode, "max_steps": 2, "length": 50}
    here, there = ew.make(LINE, **how), RemoteVectorEnv(LINE, mortal.url, **how)
    for env in (here, there):
        env.reset(seed=1)
        for _ in range(4):
            env.step([1, 0])
    kill(mortal)
    assert ew.state_of(there) == tuple(
        {"episode": row["episode"], "step_count": row["step_count"]} for row in ew.state_of(here)
    )
    there.close()


def test_before_an_episode_there_is_nothing_to_recall() -> None:
    env = RemoteEnv(LINE, NOWHERE, call_deadline=1)
    questions: tuple[Callable[[], Any], ...] = (lambda: ew.state_of(env), env.render)
    for question in questions:
        # On a busy machine the deadline may pass before the last attempt to connect, which is a timeout then.
        with pytest.raises((ConnectionError, TimeoutError)):
            question()


# Pictures


def test_a_collection_of_pictures_goes_through_a_lost_step(mortal: PrivateServer) -> None:
    env = RenderCollection(drawn(mortal))
    env.reset(seed=1)
    env.step(1)
    kill(mortal)
    assert env.step(1)[4]["fault"].kind is ew.FaultKind.LOST
    first, second, lost = env.render()
    assert not np.array_equal(first, second)
    assert np.array_equal(second, lost)
    env.reset(seed=1)
    assert np.array_equal(env.render()[0], first)
    env.close()


def test_a_video_goes_through_a_lost_step(
    mortal: PrivateServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    written: list[list[Any]] = []

    class Clip:
        def __init__(self, frames: list[Any], fps: float) -> None:
            written.append(frames)

        def write_videofile(self, path: str, logger: Any) -> None:
            assert path.endswith("-0.mp4")

    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[name], "ImageSequenceClip", Clip, raising=False)
    env = RecordVideo(drawn(mortal), str(tmp_path / "videos"), episode_trigger=lambda episode: not episode)
    env.reset(seed=1)
    env.step(1)
    kill(mortal)
    assert env.step(1)[3]
    env.reset()
    first, second, lost = written[0]
    assert not np.array_equal(first, second)
    assert np.array_equal(second, lost)
    env.close()


def test_a_picture_that_cannot_be_asked_for_any_more_is_the_last_one(mortal: PrivateServer) -> None:
    env = drawn(mortal)
    env.reset(seed=1)
    seen = env.render()
    kill(mortal)
    assert np.array_equal(env.render(), seen)
    assert env.step(1)[3]
    env.close()


def test_where_nothing_was_drawn_before_the_loss_there_is_no_picture(mortal: PrivateServer) -> None:
    env = drawn(mortal)
    env.reset(seed=1)
    kill(mortal)
    env.step(1)
    assert env.render() is None
    env.close()
    with pytest.raises(ew.ResetNeeded):
        env.unwrapped.render()


def test_rows_that_are_lost_show_what_they_showed(mortal: PrivateServer, url: str) -> None:
    env = RemoteVectorEnv(LINE, [url, mortal.url], num_envs=3, render_mode="rgb_array", length=50)
    env.reset(seed=1)
    kill(mortal)
    env.step([1, 1, 1])
    first, *lost = env.render() or ()
    assert isinstance(first, np.ndarray)
    assert lost == [None, None]
    env.step([1, 1, 1])
    seen = env.render() or ()
    kill(mortal)
    env.step([1, 1, 1])
    for shown, before in zip((env.render() or ())[1:], seen[1:], strict=True):
        assert np.array_equal(shown, before)
    env.close()


def test_a_game_that_is_lost_shows_what_it_showed(mortal: PrivateServer) -> None:
    env = RemoteAEC(KUHN, mortal.url, render_mode="ansi")
    env.reset(seed=1)
    seen = env.render()
    kill(mortal)
    assert env.render() == seen
    assert ew.state_of(env) == {"episode": 0, "step_count": 0}
    env.step(1)
    assert env.render() == seen
    env.close()


def test_an_environment_that_died_with_its_process_leaves_both() -> None:
    """Whoever is asked in its place knows nothing of the episode."""
    with running_server(MORTAL, isolation="process") as server:
        remember_token(server.url, server.token or "")
        env = RenderCollection(RemoteEnv(MORTAL, server.url, render_mode="rgb_array"))
        for episode in range(2):
            env.reset()
            env.step(0)
            assert env.step(1)[4]["fault"].kind is ew.FaultKind.CRASH
            assert ew.state_of(env) == {"episode": episode, "step_count": 2}
            assert [picture.max() for picture in env.render()] == [0, 1, 1]
        env.close()
