"""Sampled episodes as one HTML page that a browser opens without a server, and as JSON lines to resume from."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.training.run_metrics import writing
from envweave_gym.training.tinker.episodes import Episode

MAX_ENTRIES = 300
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
    update: int
    """The number of updates before it."""


class Transcripts:
    """Collects episodes, and writes them as a page."""

    def __init__(self, title: str, path: Path, *, resume: bool = False) -> None:
        """``resume`` goes on with the entries of an earlier run, which are beside the page as JSON lines."""
        self._title, self._path, self._lines = title, path, path.with_suffix(".jsonl")
        self._entries: list[_Entry] = _entries_in(self._lines) if resume else []
        self.update = 0
        """Updates that are done, which new entries name."""

    def keep(self, update: int) -> None:
        """Drop the entries of later updates than this one: training goes on from there."""
        self._entries = [one for one in self._entries if one.update <= update]
        self.update = max(0, update)

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
                self._entries.append(_Entry(title, trajectory.messages, trajectory.reward, self.update))
        self._thin_out()

    def add_fault(self, heading: str, message: str) -> None:
        """Add the message of a fault that lost an episode."""
        self._entries.append(_Entry(heading, [{"role": "fault", "content": message}], None, self.update))
        self._thin_out()

    def _thin_out(self) -> None:
        if len(self._entries) > MAX_ENTRIES:
            del self._entries[MAX_ENTRIES // 3 : -MAX_ENTRIES // 3 : 2]

    def write(self, *, resumable: bool = True) -> None:
        """Write the page and, with ``resumable``, the JSON lines."""
        entries = "".join(map(_section, self._entries))
        page = (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(self._title)}</title>'
            f"<style>{_STYLE}</style><h1>{html.escape(self._title)}</h1>{entries}</html>\n"
        )
        with writing(self._path):
            self._path.write_text(page, encoding="utf-8", errors="backslashreplace")
        if resumable:
            self._write_lines()

    def _write_lines(self) -> None:
        lines = [json.dumps(dataclasses.asdict(one), default=str) + "\n" for one in self._entries]
        scratch = self._lines.with_name(f"{self._lines.name}.new")
        with writing(self._lines):
            scratch.write_text("".join(lines), encoding="utf-8")
            scratch.replace(self._lines)  # a kill leaves either the old entries or the new ones


def _entries_in(path: Path) -> list[_Entry]:
    """Return the entries of an earlier run; none if it wrote none."""
    if not path.exists():
        return []
    try:
        return [_Entry(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"--resume: {path} cannot be read: {error}; remove it to go on") from error


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
