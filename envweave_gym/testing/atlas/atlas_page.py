"""Renders an atlas as Markdown: a table of suites, and the findings by kind and cause; and writes their scripts."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from envweave_gym.testing.atlas.id_probe import Finding, IdRecord
from envweave_gym.testing.atlas.kit_probe import KIT, PREFIX
from envweave_gym.testing.atlas.script_composition import promise_of
from envweave_gym.testing.atlas.survey import Atlas, SuiteRecord
from envweave_gym.testing.atlas.verdicts import Verdict

KINDS = {
    "API": ("contract", "own_checker", "unseeded_start", "closes_twice"),
    "seeds": ("same_seed", "same_seed_again", "beside_another", "different_seeds", "unseeded_reset"),
    "global generators": ("global_generators",),
    "same array": ("fresh_observations", "fresh_infos"),
    "render": ("render_changes_nothing",),
    "leaks": ("leaves_nothing", "gives_memory_back"),
}
"""Columns of the table for broken rules; exceptions, crashes and hangs have columns of their own."""
_OTHERS = {"raises": "raises", "crashes": "crashes", "hangs": "hangs"}
_COLUMNS = (*KINDS, *_OTHERS.values())
_TITLES = {
    "API": "Breaks the API",
    "seeds": "Episodes do not follow from the seed",
    "global generators": "Uses the process-wide random generators",
    "same array": "Writes to what it has returned, or returns it again",
    "render": "Rendering changes the episode",
    "leaks": "Leaks",
    "raises": "Raises",
    "crashes": "Ends the process",
    "hangs": "Does not end",
    KIT: "Fails a check of the conformance kit",
}
_SHOWN_IDS = 6
_WIDTH = 120
_LONGEST_TEXT_CHARS = 260


def kind_of(finding: Finding) -> str:
    """Return the column of the table that counts a finding."""
    if finding.rule.startswith(PREFIX):
        return KIT
    if finding.kind in _OTHERS:
        return _OTHERS[finding.kind]
    return next(kind for kind, rules in KINDS.items() if finding.rule in rules)


def page(atlas: Atlas, heading: str = "#") -> str:
    """Return the table of suites and the findings in Markdown."""
    records = list(atlas.ids.values())
    return "\n\n".join([_table(atlas.suites.values(), records), *_sections(records, heading)]) + "\n"


def _table(suites: Iterable[SuiteRecord], records: Sequence[IdRecord]) -> str:
    head = ["suite", "IDs", "probed", "without a finding", *_columns(records)]
    lines = [f"| {' | '.join(head)} |", f"|---{'|--:' * (len(head) - 1)}|"]
    total: Counter[str] = Counter()
    for suite in suites:
        mine = [one for one in records if one.suite == suite.suite]
        numbers = _numbers(suite, mine)
        total.update(numbers)
        lines.append(_row(_versions(suite), numbers, head[1:]))
    return "\n".join([*lines, _row("**all**", total, head[1:])])


def _columns(records: Sequence[IdRecord]) -> list[str]:
    """Return the columns of findings; the kit has one if it was run."""
    return [*_COLUMNS, *([KIT] if any(KIT in one.outcomes for one in records) else [])]


def _numbers(suite: SuiteRecord, records: Sequence[IdRecord]) -> Counter[str]:
    probed = [one for one in records if not one.unavailable]
    numbers = Counter({"IDs": suite.ids, "probed": len(probed)})
    for record in probed:
        kinds = {kind_of(finding) for finding in _real(record)}
        numbers.update(kinds or {"without a finding"})
    return numbers


def _row(title: str, numbers: Mapping[str, int], columns: Sequence[str]) -> str:
    return f"| {' | '.join([title, *[str(numbers.get(one, 0) or '') for one in columns]])} |"


def _versions(suite: SuiteRecord) -> str:
    version = suite.versions.get(suite.suite)
    return suite.suite if version is None else f"{suite.suite} {version}"


def _real(record: IdRecord) -> list[Finding]:
    return [finding for finding in record.findings if finding.reproduced]


def _sections(records: Sequence[IdRecord], heading: str) -> list[str]:
    found: dict[str, dict[tuple[str, ...], list[tuple[IdRecord, Finding]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for record in records:
        for finding in _real(record):
            cause = Verdict("finding", finding.text, finding.kind).cause[1].replace(record.id, "")
            found[kind_of(finding)][record.suite, finding.rule, cause].append((record, finding))
    lines: list[str] = []
    for kind in _columns(records):
        if kind in found:
            causes = sorted(found[kind].values(), key=lambda one: (one[0][0].suite, -len(one)))
            lines += [f"{heading}# {_TITLES[kind]}", "\n".join(map(_item, causes))]
    return lines


def _item(found: Sequence[tuple[IdRecord, Finding]]) -> str:
    """Return one item of a list: a cause with the IDs that have it."""
    record, finding = found[0]
    ids = list(dict.fromkeys(one.id for one, _ in found))
    shown = ", ".join(f"`{one}`" for one in ids[:_SHOWN_IDS])
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    kit = finding.rule.startswith(PREFIX)
    what = (
        f"`{finding.rule}`"
        if finding.kind == "broken" or kit
        else f"`{finding.rule}` with {finding.moves} moves"
    )
    text = f"- **{record.suite}**, {what}: {_plain(finding.text)} ({shown}{more})"
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _plain(text: str) -> str:
    """Return the text of a finding in one line, with the characters that mean something in Markdown escaped."""
    text = text if len(text) <= _LONGEST_TEXT_CHARS else text[: _LONGEST_TEXT_CHARS - 3] + "..."
    text = re.sub(r"(/[\w.-]+)+/site-packages/", ".../", text)
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


def rules_table() -> str:
    """Return a table of all rules by kind."""
    lines = ["| kind | rule | promise |", "|---|---|---|"]
    lines += [
        f"| {kind} | `{rule}` | {promise_of(rule)} |" for kind, rules in KINDS.items() for rule in rules
    ]
    return "\n".join(lines)


def write_scripts(records: Iterable[IdRecord], folder: Path) -> int:
    """Write the script of each reproduced finding as ``SUITE/ID-API-RULE.py``; return their number."""
    number = 0
    for record in records:
        for finding in _real(record):
            name = re.sub(r"[^\w.-]+", "_", f"{record.id}-{record.api}-{finding.rule}")
            path = folder / re.sub(r"[^\w.-]+", "_", record.suite) / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(finding.script, encoding="utf-8")
            number += 1
    return number
