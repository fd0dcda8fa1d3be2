"""Diffs in replies: how they are found, brought into shape, and what they are said to touch."""

from __future__ import annotations

import random
import time

import pytest

from envweave_gym.data.toy_repo import toy_instances
from envweave_gym.swebench.diffs import diff_in, in_crlf, missing_end, parse_diff, unquoted
from envweave_gym.swebench.evaluation import evaluate

GOLD = toy_instances("test")[0].patch
OTHER = toy_instances("test")[1].patch


@pytest.mark.parametrize(
    "reply",
    [
        f"```diff\n{GOLD}```",
        f"I think this is it:\n\n```patch\n{GOLD}```\nIt was the dots.",
        f"~~~~diff\n{GOLD}~~~~",
        f"Here is `code`:\n```python\nx = 1\n```\nand the fix:\n```diff\n{GOLD}```\n",
        f"```diff\n{GOLD}",
        f"The fix:\n{GOLD}",
        f"The fix:\n```\n{GOLD}```\nand that is all.",
        GOLD,
        f"```diff\n{GOLD.rstrip()}\n```",
    ],
)
def test_a_diff_is_found_in_a_reply(reply: str) -> None:
    assert parse_diff(diff_in(reply)) == parse_diff(GOLD)
    assert parse_diff(diff_in(reply)).text == GOLD


def test_a_diff_without_the_line_of_git_is_found_too() -> None:
    bare = GOLD.partition("\n")[2]
    assert diff_in(f"Look:\n{bare}") == bare
    assert parse_diff(bare).paths == parse_diff(GOLD).paths


def test_several_blocks_about_different_files_are_one_diff() -> None:
    reply = f"```diff\n{GOLD}```\nand\n```diff\n{OTHER}```"
    assert parse_diff(diff_in(reply)).paths == ("toolbox/text.py", "toolbox/numbers.py")


def test_of_several_drafts_the_last_one_counts() -> None:
    draft = GOLD.replace("length - 3", "length - 2")
    assert diff_in(f"```diff\n{draft}```\nNo, rather:\n```diff\n{GOLD}```") == GOLD


def test_fences_in_the_lines_of_a_file_end_no_block() -> None:
    markdown = (
        "diff --git a/README.md b/README.md\n--- a/README.md\n+++ b/README.md\n"
        "@@ -1,3 +1,3 @@\n ```\n-old\n+new\n ```\n"
    )
    assert diff_in(f"```diff\n{markdown}```\n") == markdown


@pytest.mark.parametrize("reply", ["", "no idea", "```python\nprint(1)\n```", "--- nothing\n", "diff of a"])
def test_a_reply_without_a_diff_gives_none(reply: str) -> None:
    assert diff_in(reply) == ""
    assert parse_diff(reply).changes == ()


def test_prose_around_a_diff_is_left_out_and_the_last_line_is_ended() -> None:
    assert parse_diff(f"Sure!\n{GOLD.rstrip()}").text == GOLD
    assert parse_diff(f"{GOLD}\nThat should do.\n").text == GOLD


def test_a_diff_that_came_with_crlf_means_lf() -> None:
    assert parse_diff(GOLD.replace("\n", "\r\n")).text == GOLD


def test_crlf_within_lines_of_the_file_stays_as_the_file_has_it() -> None:
    mixed = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\r\n+b\r\n"
    assert parse_diff(mixed).text == mixed
    assert in_crlf(parse_diff(mixed)) is None


def test_for_a_file_with_crlf_there_is_the_same_diff_with_such_lines() -> None:
    other = in_crlf(parse_diff("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n"))
    assert other == "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\r\n+b\r\n\\ No newline at end of file\n"


@pytest.mark.parametrize(
    ("header", "kind", "old", "new"),
    [
        ("--- a/x.py\n+++ b/x.py\n", "change", "x.py", "x.py"),
        ("--- /dev/null\n+++ b/pkg/x.py\n", "add", "", "pkg/x.py"),
        ("--- a/x.py\n+++ /dev/null\n", "delete", "x.py", ""),
        ("--- a/x.py\t2020-01-01 00:00:00\n+++ b/x.py\t2020-01-02\n", "change", "x.py", "x.py"),
        ('--- "a/\\303\\244.py"\n+++ "b/\\303\\244.py"\n', "change", "ä.py", "ä.py"),
        ("diff --git a/one b/two\nrename from one\nrename to two\n", "rename", "one", "two"),
        ("diff --git a/one b/two\ncopy from one\ncopy to two\n", "copy", "one", "two"),
        ("diff --git a/empty b/empty\nnew file mode 100644\nindex 000..e69\n", "add", "", "empty"),
        ("diff --git a/gone b/gone\ndeleted file mode 100644\n", "delete", "gone", ""),
        ("diff --git a/with space b/with space\nold mode 100644\n", "change", "with space", "with space"),
        ("--- a/../up\n+++ b/../up\n", "change", "../up", "../up"),
        ("--- /etc/passwd\n+++ /etc/passwd\n", "change", "/etc/passwd", "/etc/passwd"),
    ],
)
def test_the_paths_of_a_diff_come_from_its_headers(header: str, kind: str, old: str, new: str) -> None:
    (change,) = parse_diff(header + "@@ -1 +1 @@\n-a\n+b\n").changes
    assert (change.kind, change.old, change.new) == (kind, old, new)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n+++ b/conftest.py\n", "conftest.py"),
        ("diff --git a/x b/x\n--- a/x\nnew mode 100755\n+++ b/conftest.py\n", "conftest.py"),
        ("diff --git a/x b/conftest.py\nrename from x\nrename to conftest.py\nrename to y\n", "conftest.py"),
        (f"{GOLD}rename to conftest.py\n", "conftest.py"),
        (f"{GOLD}rename to conftest.py\n", "toolbox/text.py"),
        (
            "diff --git a/x b/x\n--- a/conftest.py\n+++ b/conftest.py\nrename from x\nrename to x\n",
            "conftest.py",
        ),
    ],
)
def test_where_headers_contradict_each_other_every_name_counts(text: str, hidden: str) -> None:
    assert hidden in parse_diff(text).paths


def test_modes_and_binary_files_are_seen() -> None:
    link = "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n"
    assert parse_diff(link).changes[0].modes == ["120000"]
    assert parse_diff("diff --git a/i.png b/i.png\nGIT binary patch\nliteral 1\nAc${NkU\n").changes[0].binary
    assert parse_diff("diff --git a/i b/i\nBinary files a/i and b/i differ\n").changes[0].binary


def test_lines_that_look_like_headers_are_lines_of_their_hunk() -> None:
    text = "--- a/x.sql\n+++ b/x.sql\n@@ -1,2 +1,2 @@\n--- old comment\n+++ new comment\n a\n"
    assert parse_diff(text).paths == ("x.sql",)
    assert parse_diff(text).text == text


def test_several_files_without_git_headers_are_separate_changes() -> None:
    one = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"
    assert parse_diff(one.format("x") + one.format("y")).paths == ("x", "y")


def test_names_in_quotes_are_read_as_git_writes_them() -> None:
    assert unquoted('"a\\tb\\"c\\\\"') == 'a\tb"c\\'
    assert unquoted("plain") == "plain"


@pytest.mark.parametrize("end", ["", "\n", "\n```"])
def test_a_diff_that_is_cut_off_between_two_lines_is_known_by_that(end: str) -> None:
    lines = (GOLD + OTHER).splitlines()
    whole = [len(GOLD.splitlines()), len(lines)]
    for number in range(1, len(lines) + 1):
        diff = parse_diff("\n".join(lines[:number]) + end)
        assert (missing_end(diff) is None) == (number in whole), number


def test_a_diff_that_is_cut_off_is_not_applied_and_says_so() -> None:
    cut = GOLD[: GOLD.index(" \n \n def indented")]  # the program patch would take it
    found = evaluate(toy_instances("test")[0], cut)
    assert (found.applied, found.resolved, found.fault) == (False, False, None)
    assert "cut off" in found.problem


@pytest.mark.parametrize(
    "header",
    [
        "new file mode 100644\nindex 0000000..e69de29\n",
        "deleted file mode 100644\nindex e69de29..0000000\n",
        "old mode 100644\nnew mode 100755\n",
        "similarity index 100%\nrename from x.py\nrename to y.py\n",
    ],
)
def test_a_change_that_needs_no_hunk_is_whole(header: str) -> None:
    assert missing_end(parse_diff(f"diff --git a/x.py b/x.py\n{header}")) is None


def test_anything_can_be_parsed() -> None:
    pieces = [
        *GOLD.splitlines(keepends=True),
        "@@",
        "@@ -1,999999999 +1 @@\n",
        "--- ",
        "+++ \n",
        "diff --git ",
        '"',
    ]
    pieces += [
        "\r\n",
        "\0",
        "rename from \n",
        "GIT binary patch\n",
        "```diff\n",
        "\\ No newline",
        "\x85",
        "\ud800",
    ]
    draw = random.Random(0)
    for _ in range(3000):
        text = "".join(draw.choices(pieces, k=draw.randrange(12)))
        found = parse_diff(diff_in(text))
        assert parse_diff(found.text).paths == found.paths


@pytest.mark.parametrize(
    "piece", ["```diff\n", "--- a/x\n+++ b/x\n", "@@ -1 +1 @@\n", "diff --git a/x b/x\n", "`" * 9]
)
def test_a_long_reply_is_read_in_time_that_grows_with_it(piece: str) -> None:
    def once(text: str) -> float:
        begun = time.process_time()
        parse_diff(diff_in(text))
        return time.process_time() - begun

    def seconds(size: int) -> float:
        """The least of three, as whatever else happens meanwhile only takes time."""
        return min(once(piece * (size // len(piece))) for _ in range(3))

    assert seconds(1 << 20) < 60 * max(seconds(1 << 16), 0.005)
