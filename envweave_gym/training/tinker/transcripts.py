"""Sampled episodes as one HTML page that a browser opens without a server."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envweave_gym.training.run_metrics import writing
from envweave_gym.training.tinker.episodes import Episode

MOST = 300
"""Episodes on the page; the middle of a longer run is thinned out."""
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
details { border: 1px solid #ddd; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer } .good { color: #17702b } .bad { color: #a33 }
pre { white-space: pre-wrap; margin: .3rem 0; padding: .5rem .8rem; border-radius: 6px; background: #f5f5f5 }
pre.assistant { background: #e8f1fb } b { font-weight: 600 }
"""


@dataclass
class _Entry:
    heading: str
    messages: Sequence[dict[str, Any]]
    reward: float | None
    """``None`` for a lost episode."""


class Transcripts:
    """Collects episodes, and writes them as a page."""

    def __init__(self, title: str, path: Path) -> None:
        self._title, self._path = title, path
        self._entries: list[_Entry] = []

    def add(self, heading: str, episodes: list[Episode]) -> None:
        """Add the best and the worst of some episodes that were not lost."""
        played = [one for one in episodes if one.fault is None and one.trajectories]
        if not played:
            return
        played.sort(key=_total)
        for episode in played[:1] + (played[-1:] if _total(played[-1]) > _total(played[0]) else []):
            for agent, trajectory in episode.trajectories.items():
                name = f", {agent}" if len(episode.trajectories) > 1 else ""
                title = f"{heading}, seed {episode.task.seed}{name}"
                self._entries.append(_Entry(title, trajectory.messages, trajectory.reward))
        self._thin_out()

    def add_fault(self, heading: str, message: str) -> None:
        """Add the message of a fault that lost an episode."""
        self._entries.append(_Entry(heading, [{"role": "fault", "content": message}], None))
        self._thin_out()

    def _thin_out(self) -> None:
        if len(self._entries) > MOST:
            del self._entries[MOST // 3 : -MOST // 3 : 2]

    def write(self) -> None:
        """Write the page."""
        entries = "".join(map(_section, self._entries))
        page = (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(self._title)}</title>'
            f"<style>{_STYLE}</style><h1>{html.escape(self._title)}</h1>{entries}</html>\n"
        )
        with writing(self._path):
            self._path.write_text(page, encoding="utf-8", errors="backslashreplace")


def _total(episode: Episode) -> float:
    return sum(one.reward for one in episode.trajectories.values())


def _section(entry: _Entry) -> str:
    kind = "good" if entry.reward is not None and entry.reward > 0 else "bad"
    result = "lost" if entry.reward is None else f"{entry.reward:g}"
    heading = f'{html.escape(entry.heading)}: <b class="{kind}">{result}</b>'
    return f"<details><summary>{heading}</summary>{''.join(map(_message, entry.messages))}</details>\n"


def _message(message: dict[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    role = html.escape(str(message.get("role")))
    calls = message.get("tool_calls")
    called = f"\n{json.dumps(calls, ensure_ascii=False)}" if calls else ""
    return f'<small>{role}</small><pre class="{role}">{html.escape(text + called)}</pre>'
