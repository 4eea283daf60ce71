from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.base import LiveView, ToolLine
from channels.console.clean import clean, clean_line
from channels.console.progress import NoticePiece, Progress, TextPiece, ToolPiece, rest_after
from channels.console.render import INDENT, Renderer, finished_length

_WORDS = [
    "one ",
    "**two**",
    "`three`",
    "\n",
    "\n\n",
    "- ",
    "1. ",
    "# ",
    "```\n",
    "| a | b |\n",
    "| - | - |\n",
    "> ",
    "    ",
    "<b>",
    "[x](y)",
    "中文",
    "---",
    "\t",
    "\r\n",
    "é",
]
markdown = st.lists(st.sampled_from(_WORDS) | st.text(max_size=5), max_size=25).map("".join)
everything = st.sampled_from([len, lambda _: 0, finished_length])


@given(st.lists(markdown, max_size=8), everything, st.data())
def test_what_is_printed_in_pieces_is_the_final_text_once(
    deltas: list[str], finished: Callable[[str], int], data: st.DataObject
) -> None:
    view, progress = LiveView(), Progress(finished)
    printed = ""
    for number, delta in enumerate(deltas):
        view.append(delta)
        if data.draw(st.booleans()):
            view.tool(str(number), ToolLine("t", str(number), data.draw(st.sampled_from(["running", "done"]))))
        if data.draw(st.booleans()):
            printed += texts(progress.advance(view.snapshot()))
            # What is on the screen at any time: the pieces and the open text, no more and no less.
            if not delta.endswith("\r"):
                assert printed + progress.live.text == clean(view.snapshot().text)
    final = "".join(deltas)
    if not any(delta.endswith("\r") for delta in deltas):
        printed += texts(progress.finish(final))
        assert printed == clean(final)


@given(st.lists(st.tuples(st.booleans(), markdown), max_size=6), everything, markdown)
def test_however_the_text_changed_the_final_one_is_whole_in_the_end(
    writes: list[tuple[bool, str]], finished: Callable[[str], int], final: str
) -> None:
    view, progress = LiveView(), Progress(finished)
    printed = ""
    for number, (replaces, text) in enumerate(writes):
        (view.replace if replaces else view.append)(text)
        view.tool(str(number), ToolLine("t", "", "done"))
        printed += texts(progress.advance(view.snapshot()))
    pieces = progress.finish(final)
    anew = any(isinstance(piece, NoticePiece) for piece in pieces)
    whole = texts(pieces) if anew else printed + texts(pieces)
    assert "".join(whole.split()) == "".join(clean(final).split())


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["running", "done", "failed"])), max_size=20))
def test_each_tool_call_is_printed_once_in_the_order_of_the_calls(changes: list[tuple[int, str]]) -> None:
    view, progress = LiveView(), Progress(len)
    seen: list[str] = []
    called: list[str] = []
    ended: set[str] = set()
    for number, state in changes:
        name = str(number)
        if name in ended:
            continue
        if name not in called:
            called.append(name)
        if state != "running":
            ended.add(name)
        view.tool(name, ToolLine(name, "", state))  # type: ignore[arg-type]  # drawn from the literal's values
        seen += tools(progress.advance(view.snapshot()))
        assert seen == called[: len(seen)]
    seen += tools(progress.finish(""))
    assert seen == called


def test_text_before_a_call_is_printed_before_it() -> None:
    view, progress = LiveView(), Progress(finished_length)
    view.append("Let me look.")
    assert progress.advance(view.snapshot()) == []
    view.tool("a", ToolLine("time", "", "running"))
    assert progress.advance(view.snapshot()) == [TextPiece("Let me look.")]
    assert progress.live.tools == (ToolLine("time", "", "running"),)
    view.tool_done("a", failed=False)
    view.append("\n\nNoon.")
    assert progress.advance(view.snapshot()) == [ToolPiece(ToolLine("time", "", "done"))]
    assert progress.finish("Let me look.\n\nNoon.") == [TextPiece("\n\nNoon.")]


def test_text_that_arrived_with_a_call_that_is_over_comes_after_it() -> None:
    view, progress = LiveView(), Progress(len)
    view.tool("a", ToolLine("time", "", "done"))
    view.append("Noon.")
    assert progress.advance(view.snapshot()) == [ToolPiece(ToolLine("time", "", "done")), TextPiece("Noon.")]


def test_another_text_than_was_printed_is_printed_whole_after_a_notice() -> None:
    view, progress = LiveView(), Progress(len)
    view.append("Cats")
    progress.advance(view.snapshot())
    view.replace("Dogs")
    assert progress.advance(view.snapshot()) == []
    assert progress.live.text == "Dogs"
    first, second = progress.finish("Dogs!")
    assert isinstance(first, NoticePiece)
    assert second == TextPiece("Dogs!")


def test_an_unfinished_reply_can_be_left_and_still_be_finished() -> None:
    view, progress = LiveView(), Progress(finished_length)
    view.append("One.\n\nTwo")
    assert progress.advance(view.snapshot()) == [TextPiece("One.\n\n")]
    assert progress.abandon() == [TextPiece("Two")]
    assert progress.finish("One.\n\nTwo three.") == [TextPiece(" three.")]


@pytest.mark.parametrize(
    ("final", "printed", "rest"),
    [
        ("abc", "", "abc"),
        ("abc", "ab", "c"),
        ("a\n\nb c", "a b", " c"),
        ("a b", "a\n\n", "b"),
        ("ab", "abc", None),
        ("xbc", "ab", None),
    ],
)
def test_the_rest_is_found_whatever_the_white_space(final: str, printed: str, rest: str | None) -> None:
    found = rest_after(final, printed)
    assert (found if found is None else found.strip()) == (rest if rest is None else rest.strip())


@given(markdown)
def test_finished_blocks_never_change_when_more_text_comes(text: str) -> None:
    text = clean(text)
    lengths = [finished_length(text[:end]) for end in range(len(text) + 1)]
    assert all(0 <= length <= end for end, length in enumerate(lengths))
    for length in lengths:
        assert length == 0 or text[length - 1] == "\n"


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("one", ""),
        ("one\n\n", ""),
        ("one\n\ntwo", "one\n\n"),
        ("# one\ntwo", "# one\n"),
        ("- a\n- b\n\nc", "- a\n- b\n\n"),
        ("```\na\n\nb\n", ""),
        ("```\na\n\nb\n```\nc", "```\na\n\nb\n```\n"),
        ("| a |\n| - |\n| b |\n\nc", "| a |\n| - |\n| b |\n\n"),
    ],
)
def test_all_blocks_but_the_last_are_finished(text: str, finished: str) -> None:
    assert text[: finished_length(text)] == finished


@given(markdown, st.integers(12, 100))
def test_no_text_is_lost_and_no_escape_code_but_colour_comes_out(text: str, width: int) -> None:
    rendered = Renderer(color=True).markdown(clean(text), width)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", rendered)
    assert "\x1b" not in bare
    assert all(char in "\n\t" or char >= " " for char in bare)
    for word in ("one", "two", "中文", "é"):
        assert bare.count(word[0]) >= clean(text).count(word)


def test_markdown_looks_as_it_should() -> None:
    text = (
        "# Head\n\nA **b** `c` <b>tag</b> [link](http://a.b)\n\n- x\n\n```python\nx = 1\n```\n\n![pic](http://p)\n"
    )
    rendered = Renderer(color=False).markdown(text, 60)
    assert re.sub(r"\x1b\[[0-9;]*m", "", rendered).split("\n") == [
        "  Head",
        "",
        "  A b c <b>tag</b> link (http://a.b)",
        "",
        "   • x",
        "",
        "  x = 1",
        "",
        "  pic (http://p)",
    ]
    assert "\x1b[1mb\x1b[0m" in rendered


def test_a_tool_line_is_one_line_within_the_width() -> None:
    rendered = Renderer(color=True).tool(ToolLine("search", "x" * 500 + "\n\x1b[2Jmore", "failed"), 40)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", rendered)
    assert len(bare) < 40
    assert bare.startswith(INDENT + "✗ search  xxx")
    assert bare.endswith("…")


@given(st.text())
def test_clean_text_has_no_control_characters_and_clean_is_idempotent(text: str) -> None:
    cleaned = clean(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202d\u202e]", cleaned)
    assert clean(cleaned) == cleaned
    assert "\n" not in clean_line(text)


def test_clean_text_shows_what_was_there() -> None:
    assert clean("a\x1b[0m\x00\x7f\x85\r\nb\rc\td") == "a␛[0m␀␡�\nb\nc\td"


def texts(pieces: object) -> str:
    assert isinstance(pieces, list)
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


def tools(pieces: object) -> list[str]:
    assert isinstance(pieces, list)
    return [piece.line.name for piece in pieces if isinstance(piece, ToolPiece)]
