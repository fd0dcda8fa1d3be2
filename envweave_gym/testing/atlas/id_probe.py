"""Tries every rule on one ID, and reduces each finding to a short script that reproduces it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from envweave_gym.testing.atlas.prober import MEMORY_MB, Ended
from envweave_gym.testing.atlas.script_composition import RULES, Api, script_of
from envweave_gym.testing.atlas.verdicts import (
    CHECKER,
    MISSING,
    TOO_LARGE,
    Kind,
    Verdict,
    verdict_of,
    with_token,
)

DEADLINE_S = 60.0
"""Default of the processor time that a script may take, in seconds; five times as much wall time."""
_DEADLINES_OF_AN_ID = 10
"""Processor time after which no further rule is tried on an ID, as a multiple of that for one script."""
OUT_OF_TIME = "not tried: the time for this ID was over"
_MOVES = ((3.0, 24), (12.0, 8))
"""Moves of an episode, by the seconds that the first rule took: slow environments play fewer."""
_FEWEST_MOVES = 3
_FEWER = (0, 1, 2, 3, 5, 8, 13)
"""Numbers of moves that are tried for a shorter reproduction."""
_FIRST = RULES[0]
VECTOR_REWARDS = "scalar_rewards"
"""Rule whose finding says what kind of suite it is, rather than that it has a defect."""
_PLAYS = ("raises", "crashes", "hangs")
_COMPARISONS = ("same_seed_again", "beside_another", "unseeded_reset", "render_changes_nothing")
"""Rules that compare episodes of one seed, which says nothing where two instances differ anyway."""
_SLOWNESS = 0.6
"""Part of the deadline that a hung script would have needed by its speed with few moves, if it is only slow."""
_CHECKED_TOO = {
    "eterministic": ("same_seed", "same_seed_again", "unseeded_reset", "fresh_observations", "fresh_infos"),
    "generators": ("different_seeds", "same_seed"),
    "share an object": ("fresh_observations", "fresh_infos"),
    "reward": (_FIRST, VECTOR_REWARDS),
    "observation": (_FIRST,),
}
"""Words in a message of Gymnasium's or PettingZoo's checker, with the rules that find the same by themselves."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A broken rule, with the script that shows it."""

    rule: str
    kind: Kind
    text: str
    moves: int
    reproduced: bool
    """Whether the script broke the rule in a fresh interpreter too."""
    script: str = ""


class IdRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that was found out about one ID: one line of the atlas."""

    suite: str
    id: str
    api: Api
    outcomes: dict[str, str]
    """Of each rule that was tried: ``passed``, ``finding``, or why it does not concern the ID."""
    findings: tuple[Finding, ...] = ()
    stopped: str = ""
    """Why the rules after the first were not tried."""
    unavailable: str = ""
    """Why the ID cannot be made here."""
    seconds: float = 0.0
    memory_mb: float = MEMORY_MB
    """Memory that a script might hold."""


class Run(Protocol):
    """Function that runs a script in the Python of the suite, in a fresh interpreter or not."""

    def __call__(self, script: str, deadline_s: float, *, fresh: bool) -> Ended:
        """Return how it ended."""
        ...


def tried(
    rule: str, script: str, run: Run, deadline_s: float, *, fresh: bool = False
) -> tuple[Ended, Verdict]:
    """Run the script of a rule; return how it ended, and what that means."""
    watched, token = with_token(script)
    ended = run(watched, deadline_s, fresh=fresh)
    return ended, verdict_of(rule, ended, deadline_s, token)


class IdProbe:
    """The scripts of one ID, which ``run`` runs."""

    def __init__(
        self,
        suite: str,
        api: Api,
        env_id: str,
        *,
        imports: Sequence[str],
        run: Run,
        deadline_s: float = DEADLINE_S,
        rules: Sequence[str] = RULES,
    ) -> None:
        self._suite, self._id, self._imports = suite, env_id, imports
        self._api: Api = api
        self._run, self._deadline_s, self._rules = run, deadline_s, rules
        self._unavailable = ""
        self._outcomes: dict[str, str] = {}
        self._findings: list[Finding] = []
        self._causes: dict[Any, str] = {}
        self._used_s = 0.0

    def record(self) -> IdRecord:
        """Try all rules; return the outcomes and the findings."""
        begun = time.monotonic()
        moves, stopped = self._first()
        for rule in () if stopped else self._rules[1:]:
            if self._used_s > _DEADLINES_OF_AN_ID * self._deadline_s:
                self._outcomes[rule] = OUT_OF_TIME
            elif rule in _COMPARISONS and self._outcomes.get("same_seed") == "finding":
                self._outcomes[rule] = "finding of same_seed"
            else:
                self._try(rule, moves)
        return IdRecord(
            self._suite,
            self._id,
            self._api,
            self._outcomes,
            tuple(self._findings),
            stopped=stopped,
            unavailable=self._unavailable,
            seconds=round(time.monotonic() - begun, 1),
        )

    def _first(self) -> tuple[int, str]:
        """Try the first rule; return the moves that the others play, or why they cannot be tried."""
        ended, verdict = self._played_in_time(_FIRST, _MOVES[0][1])
        missing = verdict.kind == "raises" and MISSING.search(verdict.text) is not None
        if verdict.text == TOO_LARGE or (missing and self._played("unseeded_start", 0)[1].kind == "raises"):
            self._unavailable = verdict.text
            return 0, "it cannot be made here"
        self._settle(_FIRST, verdict, _MOVES[0][1])
        moves = next((n for seconds, n in _MOVES if ended.seconds <= seconds), _FEWEST_MOVES)
        if verdict.kind not in _PLAYS:
            return moves, ""
        playable = self._findings[-1].moves - 1
        if playable < 1 or verdict.kind == "hangs":
            return 0, f"{_FIRST} {verdict.kind}"
        return min(moves, playable), ""

    def _try(self, rule: str, moves: int) -> None:
        self._settle(rule, self._played_in_time(rule, moves)[1], moves)

    def _played_in_time(self, rule: str, moves: int) -> tuple[Ended, Verdict]:
        """Run a rule's script; one that hangs is run with few moves, as a slow environment is no hung one."""
        ended, verdict = self._played(rule, moves)
        if verdict.kind == "hangs" and moves > _FEWEST_MOVES:
            brief, other = self._played(rule, _FEWEST_MOVES)
            expected_s = brief.seconds * moves / _FEWEST_MOVES
            if other.kind != "hangs" and expected_s > _SLOWNESS * self._deadline_s:
                return msgspec.structs.replace(brief, seconds=self._deadline_s), other
        return ended, verdict

    def _played(self, rule: str, moves: int, *, fresh: bool = False) -> tuple[Ended, Verdict]:
        ended, verdict = tried(rule, self._script(rule, moves), self._run, self._deadline_s, fresh=fresh)
        self._used_s += ended.seconds
        return ended, verdict

    def _script(self, rule: str, moves: int, finding: str = "") -> str:
        return script_of(rule, self._api, self._id, imports=self._imports, moves=moves, finding=finding)

    def _settle(self, rule: str, verdict: Verdict, moves: int) -> None:
        """Write down the outcome; reduce a finding unless an earlier rule has found the same."""
        if verdict.outcome != "finding" or verdict.kind is None:
            self._outcomes[rule] = verdict.outcome if verdict.outcome == "passed" else verdict.text
            return
        earlier = self._causes.get(verdict.cause) or self._found_by_rule(rule, verdict.text)
        if earlier is not None:
            self._outcomes[rule] = f"finding of {earlier}"
            return
        finding = self._reduced(rule, verdict, moves)
        self._outcomes[rule] = "finding" if finding.reproduced else "finding that was not reproduced"
        self._findings.append(finding)
        self._causes[verdict.cause] = rule

    def _found_by_rule(self, rule: str, text: str) -> str | None:
        if rule != CHECKER:
            return None
        found = {finding.rule for finding in self._findings}
        rules = [one for word, rules in _CHECKED_TOO.items() if word in text for one in rules]
        return next((one for one in rules if one in found), None)

    def _reduced(self, rule: str, verdict: Verdict, moves: int) -> Finding:
        """Return the finding with the fewest moves that still show it, confirmed in a fresh interpreter."""
        kind = verdict.kind
        assert kind is not None
        fewer = [n for n in _FEWER if n < moves] if kind != "hangs" else []
        for number in [*fewer, moves]:
            shorter = self._played(rule, number)[1] if number < moves else verdict
            if shorter.kind != kind:
                continue
            confirmed = self._played(rule, number, fresh=True)[1]
            if confirmed.kind == kind:
                script = self._script(rule, number, confirmed.text)
                return Finding(rule, kind, confirmed.text, number, True, script)
        return Finding(rule, kind, verdict.text, moves, False, self._script(rule, moves, verdict.text))
