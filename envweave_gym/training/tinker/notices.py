"""Sentences that a run reports once: the messages of faults, and that updates find nothing to train on.

Without them a run in which every step crashes, or no reply is an action, would look like one that merely learns
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envweave_gym.training.tinker.rollouts import EpisodeBatch
from envweave_gym.training.tinker.transcripts import Transcripts

UPDATES = 3
"""Updates in a row without training after which that is reported."""
_MAX_FAULTS = 10
"""Different messages of faults that are reported."""


class Notices:
    """The sentences that were reported so far."""

    def __init__(self, report: Callable[[str], Any], transcripts: Transcripts) -> None:
        """Pass each sentence to ``report``, and the messages of faults to the transcripts, too."""
        self._report, self._transcripts = report, transcripts
        self._faults: set[str] = set()
        self._idle = 0
        self._said_idle = False

    def faults(self, heading: str, batch: EpisodeBatch) -> None:
        """Report the messages of faults that are new."""
        for message in batch.messages:
            if message not in self._faults and len(self._faults) < _MAX_FAULTS:
                self._faults.add(message)
                self._transcripts.add_fault(heading, message)
                self._report(f"{heading}: an episode was lost: {message}")

    def trained(self, rows: int, values: Mapping[str, Any]) -> None:
        """Note how many rows an update trained on; the model that always succeeds has nothing left to learn."""
        self._idle = 0 if rows or values.get("success") == 1 else self._idle + 1
        if self._idle < UPDATES or self._said_idle:
            return
        self._said_idle = True
        invalid = values.get("invalid_replies", 0.0)
        advice = (
            "; say what to answer with --instruction, and read transcripts.html" if invalid >= 0.5 else ""
        )
        self._report(
            f"warning: {self._idle} updates in a row had nothing to train on, as the rewards in each group were equal; "
            f"replies without an action in an episode: {invalid:.2f}{advice}"
        )
