"""What is made of what happens where a patch is tried, without any such place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from absent import needs_module
from swebench_rows import NUMBERS, TEXT

from envweave_gym.core.faults import Fault
from envweave_gym.swebench.evaluation import Trial, evaluate
from envweave_gym.swebench.grading import END, EXIT_CODE, START
from envweave_gym.swebench.unpatched_pass_rates import Baselines
from envweave_gym.swebench.workspace import Ran

OFFLINE = Ran("Could not resolve host: example.org", 1)


class Place:
    """A workspace in which every command ends in the same way."""

    testbed, scratch = "/testbed", "/scratch"

    def __init__(self, ran: Ran) -> None:
        self.ran, self.opened = ran, 0

    def run(self, command: str, timeout: float) -> Ran:
        return self.ran

    def write(self, name: str, content: bytes) -> None: ...

    def adapt_script(self, script: str) -> str:
        return script

    def close(self) -> None: ...


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    needs_module("swebench", "swebench")
    found = Place(Ran("", 0))

    def opened(trial: Trial, instance: Any) -> Place:
        found.opened += 1
        return found

    monkeypatch.setattr(Trial, "open_workspace", opened)
    return found


def whole(*passed: str) -> Ran:
    """A run of all tests, of which some pass."""
    names = [*TEXT.fail_to_pass, *TEXT.pass_to_pass]
    lines = [f"{'PASSED' if name in passed else 'FAILED'} {name}" for name in names]
    applied = "+ git apply -v -\nApplied patch cleanly."
    return Ran("\n".join([applied, START, *lines, END, f"{EXIT_CODE}: 1", ""]), 0)


def test_a_patch_whose_applying_does_not_end_has_timed_out(place: Place) -> None:
    place.ran = Ran("still at it", 137, timed_out=True)
    found = evaluate(TEXT, TEXT.patch, Trial(timeout=2))
    assert (found.applied, found.timed_out, found.fault) == (False, True, None)
    assert found.problem == "applying it did not end within 2 s"


def test_the_baseline_is_cached_by_everything_that_decides_it(place: Place) -> None:
    known = Baselines(max_entries=3)
    place.ran = whole(*TEXT.fail_to_pass)
    assert [known.pass_rate(TEXT, Trial()) for _ in range(2)] == [1.0, 1.0]
    assert known.pass_rate(TEXT, Trial(tests="fail_to_pass", at_once=2)) == 1.0
    assert place.opened == 1
    place.ran = whole()
    others = [
        (msgspec.structs.replace(TEXT, image="another:1"), Trial()),
        (msgspec.structs.replace(TEXT, eval_script=f"{TEXT.eval_script}\n"), Trial()),
        (TEXT, Trial(options={"memory": "1g"})),
        (TEXT, Trial(timeout=7)),
    ]
    assert [known.pass_rate(*one) for one in others] == [0.0] * 4
    assert (place.opened, len(known)) == (5, 3)


def test_bad_luck_without_a_patch_is_not_kept(place: Place) -> None:
    known = Baselines()
    for place.ran in (Ran("", 137, timed_out=True), Ran("", 137)):
        assert known.pass_rate(TEXT, Trial()) == 0.0
    place.ran = OFFLINE
    lost = known.pass_rate(NUMBERS, Trial())
    assert isinstance(lost, Fault)
    assert "is broken" in lost.message
    assert len(known) == 0
    place.ran = whole(*TEXT.fail_to_pass)
    assert known.pass_rate(TEXT, Trial()) == 1.0
