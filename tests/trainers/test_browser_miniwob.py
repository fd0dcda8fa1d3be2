"""MiniWoB's tasks in a real Chromium: the examples of docs/browser.md, the stream, a server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("miniwob", reason="MiniWoB is not installed: run make trainers")

import envweave_gym as ew

ID = "miniwob:miniwob/click-test-2-v1"
pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of selenium, playwright and BrowserGym
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="there is no Chromium; to run it: apt-get install chromium chromium-driver",
    ),
]


@pytest.fixture(autouse=True)
def _browsers(example: Any) -> Iterator[None]:
    """Name Debian's browser, as the page does."""
    before = dict(os.environ)
    folder = example("browser_paths")["browsers"]
    yield
    shutil.rmtree(folder)
    os.environ.clear()
    os.environ.update(before)


def children() -> set[str]:
    """The names of the processes that this one has started."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            found.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


# The first test: the process of backend="subprocess" has the variables of the time at which it was started.
def test_a_language_model_clicks_in_browsergym(example: Any):
    pytest.importorskip("browsergym.miniwob")
    after = example("browsergym_click")
    assert (after["reward"], after["terminated"]) == (1.0, True)
    assert ew.messages_of(after["info"]) == []
    elsewhere = ew.make("browsergym.miniwob:browsergym/miniwob.click-test-2", backend="subprocess")
    try:
        assert elsewhere.reset(seed=1)[0]["goal"] == after["observation"]["goal"]
        assert elsewhere.step(after["reply"])[1:3] == (1.0, True)
    finally:
        elsewhere.close()


def test_a_click_in_chromium_solves_the_task_and_nothing_is_left(example: Any):
    after = example("miniwob_click")
    assert after["terminated"]
    assert 0 < after["reward"] <= 1
    assert after["info"]["raw_reward"] == 1
    assert after["picture"].shape == (210, 160, 3)
    assert after["picture"].std() > 10  # a page, not an empty screen
    assert not {name for name in children() if "chrom" in name}


def test_the_stream_has_the_action_and_the_reward_and_order_is_kept():
    env = ew.make(ID)
    try:
        env.reset(seed=1)
        action = env.unwrapped.create_action("CLICK_ELEMENT", ref=0)
        with pytest.raises(ew.InvalidAction):
            env.step({**action, "ref": "four"})
        *_, info = env.step(env.unwrapped.create_action("NONE"))
        assert ew.stream_of(info).events[0].kind == "act"
        assert ew.stream_of(info).requests[0].kind == "act"
    finally:
        env.close()


def test_equal_seeds_give_equal_pages_here_and_on_a_server():
    here, there = ew.make(ID), ew.make(ID, backend="subprocess")
    options = {"record_screenshots": True}
    try:
        seen = [env.reset(seed=seed, options=options)[0] for env in (here, there) for seed in (3, 4, 3)]
        assert [one["utterance"] for one in seen[:3]] == [one["utterance"] for one in seen[3:]]
        for one in (seen[2], seen[3], seen[5]):
            np.testing.assert_array_equal(seen[0]["screenshot"], one["screenshot"])
            assert [part["text"] for part in one["dom_elements"]] == [
                part["text"] for part in seen[0]["dom_elements"]
            ]
    finally:
        here.close()
        there.close()


def test_a_browser_that_dies_is_a_fault_and_the_next_reset_starts_another():
    env = ew.make(ID, on_fault="truncate", reset_deadline=60)
    try:
        env.reset(seed=1)
        env.unwrapped.instance.driver.quit()
        _, reward, _, truncated, info = env.step(env.unwrapped.create_action("NONE"))
        assert (reward, truncated) == (0.0, True)
        assert info["fault"].kind in ("crash", "lost")
        env.unwrapped.instance.died = True  # which MiniWoB itself notices at close() alone
        assert "fault" not in env.reset(seed=1)[1]
    finally:
        env.close()
