"""Markdown to Telegram: whatever the model writes is taken, whole and in order."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from channels.telegram.posting import entities_of
from channels.telegram.render import clean, plain, render
from channels.telegram.rich_text import RichText, Span, legal_spans, units
from channels.telegram.split import LIMIT, split
from tests.servers.telegram_rules import refusal

WORDS = st.text(st.sampled_from("abcäß漢字😀👩‍👩‍👧é̂"), min_size=1, max_size=8)
MARKS = st.sampled_from(
    [
        *("**", "*", "_", "__", "~~", "~", "`", "``", "```", "```py\n", "\n```\n", "~~~\n", "||", "|", "$", "$$"),
        *("# ", "## ", "- ", "1. ", "- [ ] ", "- [x] ", "> ", "> > ", "    ", "\t", "---\n", "===\n"),
        *("[", "](", ")", "[a](http://x.y)", "![i](http://x.y/i.png)", "[r][1]", "<a@b.c>", "<http://x.y>"),
        *("<div>\n", "</div>", "<b>", "<br>", "<!-- c -->", "&amp;", "&lt;", "&#0;"),
        *("\\", "\\(", "\\)", "\\[", "\\]", "\\frac", "\\le "),
        *("\n| a | b |\n|---|---|\n| c | d |\n", "|x|y|\n", " ", "  \n", "\n", "\n\n", "\r\n", "\r", "\0"),
        *("\u202e", "\u2028", "\ud800", "$\\frac{1}{2}$", "tg://user?id=1", "[p](tg://user?id=1)", "[e](./b.md)"),
    ]
)
MARKDOWN = st.lists(WORDS | MARKS | st.text(max_size=5), max_size=40).map("".join)
LIMITS = st.integers(20, 200) | st.just(LIMIT)


def without_space(text: str) -> str:
    return re.sub(r"\s", "", text)


def accepted(rich: RichText) -> None:
    entities = [entity.to_dict() for entity in entities_of(rich)]
    assert refusal(rich.text, entities) is None


@given(MARKDOWN, LIMITS)
@example("[`code` in a link](http://x.y) **bold `code` bold** > q", 4096)
@example("> a\n> > b\n> > ```\n> > c\n", 4096)
@example("**" + "wide 漢字 " * 60 + "**", 50)
@example("```\n" + "x" * 500 + "\n```", 100)
@example("👩‍👩‍👧" * 50, 20)
def test_any_markdown_rendered_and_split_is_accepted_complete_and_in_order(source: str, limit: int) -> None:
    rich = render(source)
    parts = split(rich, limit)
    for part in parts:
        accepted(part)
        assert units(part.text) <= limit
    assert without_space("".join(part.text for part in parts)) == without_space(rich.text)


@given(MARKDOWN, LIMITS)
def test_formatting_goes_on_in_the_next_part(source: str, limit: int) -> None:
    """Each character that can be seen has the same formatting before and after the split."""

    def seen(rich: RichText) -> list[tuple[str, frozenset[tuple[str, str | None, str | None]]]]:
        return [
            (
                char,
                frozenset(
                    (span.kind, span.url, span.language) for span in rich.spans if span.start <= at < span.end
                ),
            )
            for at, char in enumerate(rich.text)
            if not char.isspace()
        ]

    rich = render(source)
    assert [each for part in split(rich, limit) for each in seen(part)] == seen(rich)


@given(MARKDOWN)
def test_every_word_that_was_written_is_shown(source: str) -> None:
    """In the text, or as what a link leads to; only a code block's language is not text."""
    rich = render(source)
    where = without_space(rich.text) + "".join(span.url or span.language or "" for span in rich.spans)
    words = re.findall(r"[ab]{2,8}", re.sub(r"```.*|~~~.*|\[[^\]]*\]:.*|&\w+;|tg:\S*|http\S*|\./\S*", " ", source))
    assert [word for word in words if word not in where] == []


@given(st.text(st.sampled_from("ab \n`*_<>[]()|#-"), max_size=60))
def test_rendering_twice_gives_the_same(source: str) -> None:
    assert render(source) == render(source)


SPANS = st.builds(
    Span,
    st.sampled_from(["bold", "italic", "underline", "blockquote", "pre", "code"]),
    st.integers(0, 20),
    st.integers(0, 20),
)


@given(st.lists(SPANS, max_size=12))
def test_any_spans_at_all_end_legal(spans: list[Span]) -> None:
    accepted(RichText("x" * 20, legal_spans(spans)))


@given(st.lists(SPANS, max_size=12))
def test_legal_spans_stay_as_they_are(spans: list[Span]) -> None:
    legal = legal_spans(spans)
    assert legal_spans(legal) == legal


def show(source: str) -> tuple[str, list[tuple[str, str]]]:
    rich = render(source)
    return rich.text, [(span.kind, rich.text[span.start : span.end]) for span in rich.spans]


@pytest.mark.parametrize(
    ("source", "text", "spans"),
    [
        ("a **b** _c_ ~~d~~", "a b c d", [("bold", "b"), ("italic", "c"), ("strikethrough", "d")]),
        ("snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4", []),
        ("user_name said hi_", "user_name said hi_", []),
        ("use <div> & <b>x</b>", "use <div> & <b>x</b>", []),
        ("<div>\ninner **x**\n</div>\n\nafter", "<div>\ninner **x**\n</div>\n\nafter", []),
        ("one<br>two<br/>three", "one\ntwo\nthree", []),
        ("$5 or $6, ~10 and ~20", "$5 or $6, ~10 and ~20", []),
        ("$10.49 (~$11.20)", "$10.49 (~$11.20)", []),
        ("a || b || c", "a || b || c", []),
        ("[x](./rel.md)", "x (./rel.md)", []),
        ("[](https://x.y/)", "https://x.y/", [("text_link", "https://x.y/")]),
        ("[`f()`](https://x.y/)", "f()", [("text_link", "f()")]),
        ("[you](tg://user?id=5)", "you (tg://user?id=5)", []),
        ("**a `b` c**", "a b c", [("bold", "a "), ("code", "b"), ("bold", " c")]),
        ("# a **b** c", "a b c", [("underline", "a b c"), ("bold", "a b c")]),
        (r"so \(\alpha \le 2\) holds", "so α ≤ 2 holds", [("code", "α ≤ 2")]),
        (r"\[x \le \alpha\]", "x ≤ α", [("pre", "x ≤ α")]),
        (r"\[not a link\](x) \(nor this\)", "[not a link](x) (nor this)", []),
        (r"`\(\alpha\)`", r"\(\alpha\)", [("code", r"\(\alpha\)")]),
        ("- [ ] a\n- [x] b", "☐ a\n☑ b", []),
        ("```py\nx = 1\n```", "x = 1", [("pre", "x = 1")]),
        ("```\nnever closed", "never closed", [("pre", "never closed")]),
        ("**never closed", "**never closed", []),
        ("&lt;b&gt; &amp;", "<b> &", []),
        ("a\0b\rc\u202ed\ud800", "a b\ncd\ufffd", []),
    ],
)
def test_what_people_see(source: str, text: str, spans: list[tuple[str, str]]) -> None:
    assert show(source) == (text, spans)


def test_a_table_is_a_block_with_its_cells_in_line() -> None:
    text, spans = show("| name | n |\n|---|---|\n| a<br>b | $\\alpha$ |")
    assert text.splitlines()[0].startswith("name | n")
    assert "a b" in text
    assert spans == [("pre", text)]


def test_a_code_block_keeps_its_language_over_a_split() -> None:
    rich = render(
        "before\n\n```python\n" + "\n".join(f"line_{number} = {number}" for number in range(40)) + "\n```"
    )
    parts = split(rich, 200)
    assert len(parts) > 2
    assert [span.language for part in parts for span in part.spans if span.kind == "pre"] == ["python"] * len(
        parts
    )


def test_an_indented_line_of_code_keeps_its_indent_over_a_split() -> None:
    rich = render("```\n" + "\n".join(f"    indented {number}" for number in range(30)) + "\n```")
    assert all(part.text.startswith("    indented") for part in split(rich, 100))


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("aaaa aaaa aa\n\nbbbb\nbbbb bbbb", 20, ["aaaa aaaa aa", "bbbb\nbbbb bbbb"]),
        ("aaaa aaaa aa\nbbbb bbbb bb", 20, ["aaaa aaaa aa", "bbbb bbbb bb"]),
        ("aaaa aaaa bbbb bbbb", 12, ["aaaa aaaa", "bbbb bbbb"]),
        ("a" * 25, 10, ["a" * 10, "a" * 10, "a" * 5]),
        ("e\u0301\u0302" * 5, 8, ["e\u0301\u0302" * 2, "e\u0301\u0302" * 2, "e\u0301\u0302"]),
        ("👩‍👩‍👧" * 3, 12, ["👩‍👩‍👧"] * 3),
        ("😀" * 6, 5, ["😀" * 2] * 3),
    ],
)
def test_a_cut_is_made_at_a_paragraph_then_a_line_then_a_word(text: str, limit: int, parts: list[str]) -> None:
    assert [part.text for part in split(RichText(text), limit)] == parts


def test_a_link_is_not_cut_where_that_can_be_helped() -> None:
    rich = render("some words before [a link of several words](https://x.y/) and after")
    linked = [part.text[span.start : span.end] for part in split(rich, 30) for span in part.spans]
    assert linked == ["a link of several words"]


def test_a_message_holds_no_more_formatting_than_telegram_shows() -> None:
    rich = render("`a` " * 250)
    parts = split(rich)
    assert [len(part.spans) for part in parts] == [100, 100, 50]
    for part in parts:
        accepted(part)


def test_blank_text_gives_no_part() -> None:
    assert split(render(" \n \n")) == []
    assert split(plain("\n")) == []


@given(st.text(max_size=50))
def test_cleaning_twice_changes_nothing_more(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@pytest.mark.parametrize(
    "source", ["[" * 3000, "> " * 2000 + "x", "*a " * 3000, "- " * 300 + "x", "<" * 5000, "`" * 5001]
)
def test_hostile_markdown_is_rendered_in_time(source: str) -> None:
    for part in split(render(source)):
        accepted(part)
