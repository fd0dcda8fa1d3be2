"""Renders an atlas as Markdown: a table of suites, the findings by kind and cause, and what was not tried.

It also writes the scripts of findings, and puts the tables into a page that has markers for them.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.testing.atlas.atlas_file import Atlas, SuiteRecord, without_folders
from envweave_gym.testing.atlas.id_probe import VECTOR_REWARDS, Finding, IdRecord
from envweave_gym.testing.atlas.kit_probe import KIT, PREFIX
from envweave_gym.testing.atlas.script_composition import promise_of
from envweave_gym.testing.atlas.verdicts import Verdict

_VECTORS = "vector rewards"
KINDS = {
    _VECTORS: (VECTOR_REWARDS,),
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
_PASSED_KIT, _ONLY_KIT = "pass the kit", "kit alone"
_CLEAN = "without a finding"
_TITLES = {
    _VECTORS: "Rewards are vectors",
    "API": "Breaks the API",
    "seeds": "Episodes do not follow from the seed",
    "global generators": "Uses the process-wide random generators",
    "same array": "Writes to what it has returned, or returns it again",
    "render": "Rendering changes the episode",
    "leaks": "Leaks",
    "raises": "Raises",
    "crashes": "Ends the process",
    "hangs": "Does not end",
    _ONLY_KIT: "Fails a check of the conformance kit",
}
BEGIN, END = "<!-- begin of the atlas -->", "<!-- end of the atlas -->"
"""Lines of a page between which the table goes."""
_SHOWN_IDS = 6
_WIDTH = 120
_LONGEST_TEXT_CHARS = 260


def kind_of(finding: Finding) -> str:
    """Return the column of the table that counts a finding."""
    if finding.rule.startswith(PREFIX):
        return _ONLY_KIT
    if finding.kind in _OTHERS:
        return _OTHERS[finding.kind]
    return next(kind for kind, rules in KINDS.items() if finding.rule in rules)


def page(atlas: Atlas, heading: str = "#") -> str:
    """Return the table of suites, the findings, and what was not tried, in Markdown."""
    records = list(atlas.ids.values())
    suites = atlas.suites.values()
    notes = _items((one.suite, one.note) for one in suites)
    parts = [_table(suites, records), *(["\n".join(notes)] if notes else []), *_sections(records, heading)]
    left_out = [*_items((one.suite, one.unavailable) for one in suites), *_unavailable(records)]
    left_out += _without_kit(records)
    if left_out:
        parts += [f"{heading}# Not tried", "\n".join(left_out)]
    return "\n\n".join(parts) + "\n"


def filled_page(path: Path, atlas: Atlas | None) -> str:
    """Return the text of a page with the table between its markers; ``None`` leaves that as it is.

    Raise ``InvalidArgument`` if the page has no markers.
    """
    try:
        before, begin, rest = path.read_text(encoding="utf-8").partition(f"\n{BEGIN}\n")
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error}; name a Markdown file with {BEGIN}") from error
    between, end, after = rest.partition(f"\n{END}\n")
    if not end:
        raise InvalidArgument(f"{path} lacks the lines {BEGIN} and {END}, between which the table goes")
    if atlas is not None:
        tried = [one for one in atlas.ids.values() if not one.unavailable]
        suites = len({one.suite for one in tried})
        between = f"\n## {len(tried)} IDs of {suites} suites\n\n{page(atlas, '##')}\n"
    return before + begin + between + end + after


def _table(suites: Iterable[SuiteRecord], records: Sequence[IdRecord]) -> str:
    head = ["suite", "IDs", "tried", _CLEAN, *_columns(records)]
    lines = [f"| {' | '.join(head)} |", f"|---{'|--:' * (len(head) - 1)}|"]
    total: Counter[str] = Counter()
    for suite in suites:
        mine = [one for one in records if one.suite == suite.suite]
        numbers = _numbers(suite, mine)
        total.update(numbers)
        lines.append(_row(_versions(suite), numbers, head[1:]))
    return "\n".join([*lines, _row("**all**", total, head[1:])])


def _columns(records: Sequence[IdRecord]) -> list[str]:
    """Return the columns of findings; the kit has two if it was run."""
    return [*_COLUMNS, *([_ONLY_KIT, _PASSED_KIT] if any(KIT in one.outcomes for one in records) else [])]


def _numbers(suite: SuiteRecord, records: Sequence[IdRecord]) -> Counter[str]:
    """Return the numbers of a row; a vector reward alone is no finding here, as a suite may be for that."""
    tried = [one for one in records if not one.unavailable]
    numbers = Counter({"IDs": suite.ids, "tried": len(tried)})
    for record in tried:
        kinds = {kind_of(finding) for finding in _real(record)}
        numbers.update(kinds)
        numbers.update([] if kinds - {_VECTORS} else [_CLEAN])
        numbers.update([_PASSED_KIT] if record.outcomes.get(KIT) == "passed" else [])
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
            cause = _cause(finding.text, record)
            found[kind_of(finding)][record.suite, finding.rule, cause].append((record, finding))
    lines: list[str] = []
    for kind in _TITLES:
        if kind in found:
            causes = sorted(found[kind].values(), key=lambda one: (one[0][0].suite, -len(one)))
            lines += [f"{heading}# {_TITLES[kind]}", "\n".join(map(_item, causes))]
    return lines


def _items(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Return an item for each suite that has a text."""
    return [_wrapped(f"- **{name}**: {_plain(text)}") for name, text in texts if text]


def _unavailable(records: Sequence[IdRecord]) -> list[str]:
    """Return items about the IDs that cannot be made, by suite and reason."""
    found: dict[tuple[str, str], list[IdRecord]] = defaultdict(list)
    for one in records:
        if one.unavailable:
            found[one.suite, _cause(one.unavailable, one)].append(one)
    return [
        _wrapped(f"- **{suite}**, {len(ones)} IDs such as `{ones[0].id}`: {_plain(ones[0].unavailable)}")
        for (suite, _), ones in sorted(found.items(), key=lambda item: (item[0][0], -len(item[1])))
    ]


def _without_kit(records: Sequence[IdRecord]) -> list[str]:
    """Return items about the IDs on which the kit was run without a result, by suite and reason."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in records:
        outcome = one.outcomes.get(KIT, "passed")
        if outcome != "passed" and not outcome.startswith("finding"):
            found[one.suite, outcome].append(one.id)
    return [
        _wrapped(f"- **{suite}**, the kit on {len(ids)} IDs such as `{ids[0]}`: {_plain(outcome)}")
        for (suite, outcome), ids in sorted(found.items())
    ]


def _wrapped(item: str) -> str:
    return textwrap.fill(item, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


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
    text = f"- **{record.suite}**, {what}: {_plain(_short(finding.text, record))} ({shown}{more})"
    return _wrapped(text)


def _short(text: str, record: IdRecord) -> str:
    """Return the text of a finding without the name that the kit puts before it, and without values that differ."""
    text = re.sub(rf"^(\S*:)?{re.escape(record.id)} (\(\w+\)|\(unwrapped\)|made)?:? ?", "", text)
    return re.sub(r"( at move \d+ \S+) is .*", r"\1 differs", text)


def _cause(text: str, record: IdRecord) -> str:
    """Return a text that is equal for IDs that have the same finding."""
    return Verdict("finding", _short(text, record).replace(record.id, "")).cause[1]


def _plain(text: str) -> str:
    """Return the text of a finding in one line, with the characters that mean something in Markdown escaped."""
    text = without_folders(text)
    text = text if len(text) <= _LONGEST_TEXT_CHARS else text[: _LONGEST_TEXT_CHARS - 3] + "..."
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
