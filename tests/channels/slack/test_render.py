"""Markdown to Slack: whatever the text, Slack takes it, nothing of it is lost, and it calls nobody."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from channels.slack.decode import decode, mentioned, without_own_mention
from channels.slack.mrkdwn import to_mrkdwn
from channels.slack.render import as_markdown, as_plain, as_sections, code_spans, forms, harmless, parts_of
from channels.slack.split import fence_opened_by, split, split_fences
from tests.servers.slack_rules import all_texts, badly_escaped, group_words, pings, refusal, tokens

PIECES = [
    "word ",
    "words of some length, and more of them. ",
    "字漢字かな ",
    "👩‍👩‍👧‍👦",
    "e\u0301",
    "\n",
    "\n\n",
    "```",
    "```python\n",
    "~~~\n",
    "`",
    "``",
    "`code` ",
    "<!here> ",
    "<@U123ABC> ",
    "<#C1|general> ",
    "<!subteam^S1|@team> ",
    "@channel ",
    "@Everyone",
    "a@here.org ",
    "&amp; ",
    "&lt;!here&gt; ",
    "& < > ",
    "<https://e.org/?a=1&b=2> ",
    "[link](https://e.org/a_b) ",
    "[ping](<!channel>) ",
    "![picture](https://e.org/p.png) ",
    "**bold** ",
    "*it* _it_ ~~gone~~ ",
    "# heading\n",
    "> quote\n",
    "- item\n",
    "  - deeper\n",
    "1. one\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "---\n",
    "<b>html</b> ",
    "\\*not\\* ",
    "x" * 700,
    "long words " * 150,
    "    indented\n",
]
markdown = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=60).map("".join)


def bare(text: str) -> str:
    """The text without white space, fence lines and the characters that make @here a word."""
    kept = [line for line in text.split("\n") if not re.match(r"[ \t]*(```|~~~)", line)]
    return re.sub(r"[\s\u2060]+", "", "".join(kept))


@given(markdown, st.sampled_from([500, 800, 3000]))
@example("```\n" + "a < b & c\n" * 400 + "```\nend", 500)
@example("1. x\n    ```sh\n" + "    echo hi\n" * 300 + "    ```\nend", 500)
@example("&lt;" * 600, 500)
def test_parts_hold_the_whole_text_in_order_and_each_fits(text: str, limit: int) -> None:
    parts = parts_of(text, limit)
    for part in parts:
        assert part.strip()
        assert max(map(len, (harmless(part), as_plain(part)[0]["text"]))) <= limit  # type: ignore[arg-type]  # text
    assert bare("\n".join(parts)) == bare(text)


@given(markdown, st.sampled_from([500, 800]))
def test_a_code_fence_is_closed_in_every_part_but_the_last(text: str, limit: int) -> None:
    for part in parts_of(text, limit)[:-1]:
        *_, (is_code, last) = split_fences(part + "\n")
        assert not is_code or fence_opened_by(last.split("\n")[0]).closed_by(last.split("\n")[-2])  # type: ignore[union-attr]  # code is fenced


def test_a_cut_fence_is_opened_again_with_its_language() -> None:
    lines = "\n".join(f"line {number}" for number in range(120))
    first, second, *_ = parts_of(f"see:\n\n```python\n{lines}\n```\nend", 700)
    assert first.endswith("\n```")
    assert second.startswith("```python\nline ")


def test_text_is_cut_at_paragraphs_first_then_at_words() -> None:
    paragraph = "word " * 70
    assert parts_of(f"{paragraph}\n\n{paragraph}", 600) == [paragraph.strip(), paragraph.strip()]
    assert all(part.endswith("word") for part in parts_of("word " * 400, 600))


def test_a_paragraph_of_several_lines_is_kept_together() -> None:
    first, second = "\n".join(["one one one"] * 22), "\n".join(["two two two"] * 22)
    assert parts_of(f"{first}\n\n{second}", 500) == [first, second]


def test_a_reopened_fence_in_a_list_is_closed_at_the_margin() -> None:
    *_, last = parts_of("1. x\n     ```sh\n" + "     echo hi\n" * 60 + "     ```\nend", 700)
    assert last.startswith("```sh\n     echo")
    assert last.endswith("     echo hi\n```\nend")


def test_an_entity_is_not_cut() -> None:
    assert all(set(part.split(";")) == {"&amp", ""} for part in parts_of("&amp;" * 400, 500))


def test_what_looks_like_one_character_is_not_cut() -> None:
    family = "👩‍👩‍👧‍👦"
    parts = parts_of(family * 200, 500)
    assert all(part.count(family) * len(family) == len(part) for part in parts)


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=80))
def test_a_growing_text_keeps_its_earlier_parts(pieces: list[str]) -> None:
    shown: list[str] = []
    for end in range(1, len(pieces) + 1):
        parts = parts_of("".join(pieces[:end]), 600)
        settled = max(0, len(shown) - 2)
        assert parts[:settled] == shown[:settled]
        shown = parts


@given(markdown)
def test_slack_takes_every_form_of_every_text(text: str) -> None:
    for part in parts_of(text):
        for form in forms():
            bodies = form(part)
            assert bodies
            for body in bodies:
                assert refusal(body, update=True) is None


@given(markdown)
def test_no_form_calls_anybody_or_holds_a_token_that_is_no_link(text: str) -> None:
    for part in parts_of(text):
        for form in forms():
            for body in form(part):
                assert pings(body) == []
        for body in [*as_sections(part), *as_plain(part)]:
            assert all(token.startswith(("<http", "<mailto")) for t in all_texts(body) for token in tokens(t))
        for body in as_markdown(part):
            assert all(not tokens(t) for t in all_texts(body))


@pytest.mark.parametrize("text", ["@here", "hi @channel!", "(@Everyone)", "**@here**"])
def test_group_words_are_mere_words(text: str) -> None:
    for form in forms():
        assert group_words(form(text)[0]) == []


@given(markdown)
def test_mrkdwn_is_escaped(text: str) -> None:
    assert not badly_escaped(to_mrkdwn(text))


@given(st.lists(st.text(alphabet="abcdefgh", min_size=1), min_size=1), st.data())
def test_mrkdwn_loses_no_word(words: list[str], data: st.DataObject) -> None:
    forms_of_word = [
        "**{}**",
        "*{}*",
        "~~{}~~",
        "`{}`",
        "\n# {}\n",
        "\n- {}\n",
        "\n> {}\n",
        "\n```\n{}\n```\n",
        "{}",
    ]
    text = " ".join(data.draw(st.sampled_from(forms_of_word)).format(word) for word in words)
    assert re.findall("[a-h]+", to_mrkdwn(text)) == words


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("**b** *i* ~~s~~ `c<d`", "*b* _i_ ~s~ `c&lt;d`"),
        ("# Title *x*", "*Title _x_*"),
        ("[a|b](https://e.org/?x=1&y=2)", "<https://e.org/?x=1&amp;y=2|a¦b>"),
        ("[x](<!here>)", "x (!here)"),
        ("- a\n- b\n  1. c", "• a\n• b\n    1. c"),
        ("> a\n> b", "> a\n> b"),
        ("```py\na && b\n```", "```\na &amp;&amp; b\n```"),
        ("| n | value |\n|--|--|\n| 字 | 1 |\n| ab | 22 |", "```\nn   value\n字  1\nab  22\n```"),
        ("a & b < c > d", "a &amp; b &lt; c &gt; d"),
        ("> " * 80 + "deep", "&gt; " * 80 + "deep"),
    ],
)
def test_mrkdwn_of(source: str, wanted: str) -> None:
    assert to_mrkdwn(source) == wanted


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("a < b", "a &lt; b"),
        ("> quote -> x", "> quote -> x"),
        ("AT&T &lt;", "AT&T &lt;"),
        ("`&lt;` <!here>", "`&amp;lt;` &lt;!here>"),
        ("```html\n&lt;b> <b>\n```\n<b>", "```html\n&amp;lt;b> &lt;b>\n```\n&lt;b>"),
        ("<https://e.org/?a=1&b=2>", "https://e.org/?a=1&b=2"),
        ("`@here` @here me@here.org", "`@here` @\u2060here me@here.org"),
    ],
)
def test_the_markdown_block_of(source: str, wanted: str) -> None:
    assert harmless(source) == wanted


def test_code_spans_pair_runs_of_one_length() -> None:
    assert code_spans("`a` ``b`c`` `") == [(0, 3), (4, 11)]


@given(st.text(alphabet="ab \n", max_size=3000), st.integers(500, 900))
def test_plain_text_is_split_without_fences(text: str, limit: int) -> None:
    assert all(len(part) <= limit for part in split(text, limit, len, fences=False))


# ---- mrkdwn in


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ("<@U1> and <@U9> and <@U8|carl>", "@Ann and @U9 and @carl"),
        ("<#C1|general> <#C2>", "#general #C2"),
        (
            "<https://e.org|site> <https://e.org> <http://e.org|e.org>",
            "site (https://e.org) https://e.org http://e.org",
        ),
        ("<mailto:a@e.org|a@e.org> <tel:+49|+49>", "a@e.org +49"),
        ("<!here> <!channel|channel> <!subteam^S1|@team> <!subteam^S1>", "@here @channel @team @group"),
        ("<!date^1392734382^{date}|Feb 18>", "Feb 18"),
        ("&lt;b&gt; &amp;amp; &amp;lt;", "<b> &amp; &lt;"),
        ("<odd>", "<odd>"),
    ],
)
def test_decoding(raw: str, wanted: str) -> None:
    assert decode(raw, {"U1": "Ann"}) == wanted


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ("<@UBOT> hi", "hi"),
        ("<@UBOT|bot>: hi", "hi"),
        ("hi <@UBOT>", "hi"),
        ("<@UBOT>", ""),
        ("tell <@UBOT> that", "tell <@UBOT> that"),
        ("<@UBOT2> hi", "<@UBOT2> hi"),
    ],
)
def test_our_own_mention_is_taken_off(raw: str, wanted: str) -> None:
    assert without_own_mention(raw, "UBOT") == wanted


def test_mentioned_people_are_named_once() -> None:
    assert mentioned("<@U1> <@W2|x> <@U1> <#C1>") == ["U1", "W2"]


@given(st.text(alphabet="<>@#!|&;ampltgUC1 :/", max_size=60))
def test_any_text_is_decoded(raw: str) -> None:
    decode(raw, {})
