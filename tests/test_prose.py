"""The pages read easily, and name only commands and headings that exist.

A sentence ends at ``.``, ``!``, ``?``, ``:`` or ``;`` before a capital.  Code,
tables, headings and comments are no prose.  All pages together keep each
ratio; so does each page, but one with fewer than `SMALL` sentences may have
one exception more than the ratio gives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 30  # words in a sentence
LONG = 1 / 10  # of the sentences may be longer
WHO = 2 / 1000  # words may be one of who, whom, whose and whoever
VAGUE = 1 / 30  # of the sentences may begin with a pronoun for a noun
SMALL = 60  # sentences
FORBIDDEN = ("urn", "usher", "warden", "ferry", "rollcall", "wills", "graves")

pytestmark = pytest.mark.skipif(
    not (ROOT / "comms").is_dir(), reason="not a checkout: the rooms are not at the root"
)


def _pages() -> list[Path]:
    named = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGES.md")]
    return named + sorted((ROOT / "docs").rglob("*.md"))


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _without_fences(text: str) -> str:
    """Give the text without fenced code and comments."""
    return re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)


def _paragraphs(text: str) -> Iterator[str]:
    """Give paragraphs and list entries, each as one line."""
    for block in re.split(r"\n\s*\n", _without_fences(text)):
        lines = [line for line in block.split("\n") if not re.match(r"\s*[|#<]|    ", line)]
        for entry in re.split(r"\n\s*(?:[-*]|\d+\.)\s+", "\n" + "\n".join(lines)):
            if entry.strip():
                yield " ".join(entry.split())


def _sentences(text: str) -> Iterator[tuple[str, int]]:
    """Give each sentence of more than two words, and how many words it has."""
    for paragraph in _paragraphs(text):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)  # a link is its text
        plain = re.sub(r"`[^`]*`", "X", plain)  # code is one word
        for sentence in re.split(r"(?<=[.!?:;])\s+(?=[A-Z(\"'*])", plain):
            words = len(re.findall(r"[A-Za-z0-9][\w'./%-]*", sentence))
            if words > 2:
                yield sentence, words


@dataclass(frozen=True)
class _Count:
    """What is counted in some pages, with the sentences to look at."""

    sentences: int
    words: int
    long: list[str]
    who: list[str]
    vague: list[str]


def _count(pages: list[Path]) -> _Count:
    found = [pair for page in pages for pair in _sentences(page.read_text())]
    texts = [text for text, _ in found]
    return _Count(
        sentences=len(found),
        words=sum(words for _, words in found),
        long=[text for text, words in found if words > LONGEST],
        who=[t for t in texts for _ in re.findall(r"\bwho(?:ever|m|se)?\b", t, re.IGNORECASE)],
        vague=[t for t in texts if re.match(r"\W*(what|those|such|whoever)\b", t, re.IGNORECASE)],
    )


def _complaints(count: _Count, more: int) -> list[str]:
    """Give the sentences of each kind that stands too often."""
    kinds = (
        (f"more than {LONGEST} words", count.long, LONG * count.sentences),
        ("who, whom, whose, whoever", count.who, WHO * count.words),
        ("begins with what, those, such, whoever", count.vague, VAGUE * count.sentences),
    )
    return [
        f"{kind} ({len(found)}, allowed {allowed + more:.1f}): {text}"
        for kind, found, allowed in kinds
        if len(found) > allowed + more
        for text in found
    ]


@pytest.mark.parametrize("page", _pages(), ids=_name)
def test_a_page_reads_easily(page: Path) -> None:
    count = _count([page])
    found = _complaints(count, more=1 if count.sentences < SMALL else 0)
    assert not found, "\n".join(found)


def test_all_pages_together_read_easily() -> None:
    found = _complaints(_count(_pages()), more=0)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", _pages(), ids=_name)
def test_no_page_has_a_forbidden_word(page: Path) -> None:
    words = re.findall(r"[A-Za-z]+", page.read_text().lower())
    assert sorted(set(words) & set(FORBIDDEN)) == []


def test_the_glossary_is_sorted_and_each_word_has_a_page() -> None:
    rows = (ROOT / "docs" / "glossary.md").read_text().split("|---|---|---|\n")[1].splitlines()
    words = [row.split("|")[1].strip().lower() for row in rows]
    assert words == sorted(set(words))
    assert [row for row in rows if not re.fullmatch(r"\|[^|]+\|[^|]+\| \[.+\]\(.+\) \|", row)] == []


def _anchors(page: Path) -> set[str]:
    """Give what a link may name in a page: its headings, as GitHub writes them."""
    heads = re.findall(r"^#+ (.*)$", _without_fences(page.read_text()), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head) for head in heads)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in plain}


@pytest.mark.parametrize("page", _pages(), ids=_name)
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)[^)]*\)", _without_fences(page.read_text())):
        if "://" in link or link.startswith("mailto"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            missing.append(link)
    assert missing == []


def _shown(text: str) -> Iterator[str]:
    """Give the commands that a page shows: code but Python's, line by line."""
    for language, block in re.findall(r"```(\w*)\n(.*?)```", text, flags=re.DOTALL):
        if language in {"", "sh", "bash", "console", "text"}:
            yield from block.splitlines()
    rest = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from re.findall(r"^    (.*)$", rest, flags=re.MULTILINE)
    yield from re.findall(r"`([^`]+)`", rest)


@pytest.mark.parametrize("page", _pages(), ids=_name)
def test_verbs_that_a_page_shows_exist(page: Path) -> None:
    from closeranks.__main__ import cli

    lines = list(_shown(page.read_text()))
    context = click.Context(cli)
    missing = []
    for verb, word in re.findall(
        r"(?<![\w/.-])(?<!import )(?<!from )closeranks ([a-z]\S*)(?: +([a-z][a-z-]*\b))?",
        "\n".join(re.sub(r"\s+#.*", "", line) for line in lines),
    ):
        command = cli.get_command(context, verb)
        words = command.list_commands(context) if isinstance(command, click.Group) else []
        if command is None or (word and words and word not in words):
            missing.append(f"closeranks {verb} {word}".strip())
    assert missing == []


@pytest.mark.parametrize("page", _pages(), ids=_name)
def test_make_targets_that_a_page_shows_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = "\n".join(_shown(page.read_text()))
    named = set(re.findall(r"(?<![\w/.-])make ([a-z][a-z0-9-]*)", shown))
    assert sorted(named - targets) == []
