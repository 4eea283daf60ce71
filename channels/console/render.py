"""Markdown to a terminal's escape codes. Imported only where there is a terminal, since rich takes its time."""

from __future__ import annotations

import io
import re
from typing import ClassVar

import structlog
from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import CodeBlock, Heading, ImageItem, Markdown, MarkdownElement
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from channels.base import ToolLine
from channels.console.clean import clean, clean_line

log = structlog.get_logger()

INDENT = "  "
_UNWRAPPED = 10_000  # columns
LARGEST_LIVE_CHARS = 4000  # of an open block; a larger one is shown as it is until it is finished
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_CODE_THEME = "ansi_dark"  # the terminal's own colours, so that it can be read on light and dark

_THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "italic",
        "markdown.code": "cyan",
        "markdown.block_quote": "dim",
        "markdown.link": "underline",
        "markdown.link_url": "dim",
        "markdown.item.bullet": "dim",
        "markdown.item.number": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)
# Without HTML: rich would leave tags out, and an answer about HTML would lose its point.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


def finished_length(text: str) -> int:
    """How many characters of a growing Markdown text stand in blocks that are complete: all but the last."""
    starts = [
        token.map[0] for token in _PARSER.parse(text) if token.level == 0 and token.map and token.nesting >= 0
    ]
    if len(starts) < 2:
        return 0
    return sum(len(line) for line in text.split("\n")[: starts[-1]]) + starts[-1]


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _PlainCode(CodeBlock):
    """Without a background and without padding, so that it can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=_CODE_THEME, word_wrap=True, background_color="default")


class _Image(ImageItem):
    """As a link, since a terminal shows no picture."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text.assemble(self.text or "image", (f" ({self.destination})", "dim"), end="")


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
        "image": _Image,
    }

    def __init__(self, markup: str) -> None:
        super().__init__(markup, code_theme=_CODE_THEME, hyperlinks=False)
        self.parsed = _PARSER.parse(markup)


class Renderer:
    """Renders for one terminal; `color=False` leaves bold and the like."""

    def __init__(self, *, color: bool) -> None:
        self._color = color

    def markdown(self, text: str, width: int) -> str:
        """The text as lines with escape codes, indented; no blank line before or after, none without text."""
        try:
            return self._indented(_Markdown(text.strip("\n")), width)
        # rich and its lexers are not ours, and an answer must not be lost to what they make of it.
        except Exception:
            log.warning("console.not_rendered", exc_info=True)
            return self.plain(text, width)

    def plain(self, text: str, width: int, style: str = "") -> str:
        return self._indented(Text(text.strip("\n"), style=style), width)

    def live(self, text: str, width: int, height: int) -> str:
        """The open block, its last `height` lines."""
        if len(text) > LARGEST_LIVE_CHARS:
            rendered = self.plain(text[-LARGEST_LIVE_CHARS:], width)
        else:
            rendered = self.markdown(text, width)
        return "\n".join(rendered.split("\n")[-height:]) if height > 0 else ""

    def tool(self, line: ToolLine, width: int) -> str:
        """One quiet line, cut to the width."""
        mark, style = {"running": ("·", "dim"), "done": ("✓", "dim"), "failed": ("✗", "dim red")}[line.state]
        text = Text(f"{mark} {clean_line(line.name)}  {clean_line(line.args)}".rstrip(), style=style)
        text.truncate(max(width - len(INDENT) - 1, 10), overflow="ellipsis")
        return self._indented(text, width)

    def notice(self, text: str) -> str:
        """One line, not wrapped, so that a path in it stays whole."""
        return self._indented(Text(text, style="dim"), _UNWRAPPED)

    def asked(self, text: str, width: int) -> str:
        """What the person entered, as it stays on the screen."""
        first, *more = clean(text).split("\n")
        prompt = Text("you › ", style="bold cyan")
        lines = prompt.append(first, style="bold") + Text(
            "".join(f"\n      {line}" for line in more), style="bold"
        )
        return self._render(lines, width)

    def _indented(self, renderable: Markdown | Text, width: int) -> str:
        rendered = self._render(renderable, max(width - len(INDENT) - 1, 10))
        lines = [INDENT + line.rstrip() if _ESCAPE.sub("", line).strip() else "" for line in rendered.split("\n")]
        return "\n".join(lines).strip("\n")

    def _render(self, renderable: Markdown | Text, width: int) -> str:
        buffer = io.StringIO()
        console = Console(
            file=buffer,
            force_terminal=True,
            color_system="standard",
            no_color=not self._color,
            width=width,
            theme=_THEME,
            highlight=False,
            legacy_windows=False,
        )
        console.print(renderable, end="")
        return buffer.getvalue()
