"""What the offline model says, in English and Chinese."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OfflineTexts:
    """One language's texts; fields in braces are filled with str.format."""

    introduction: str
    hello: str
    help: str
    help_tools: str
    help_no_tools: str
    thanks: str
    bye: str
    echo: str
    image: str
    failed: str
    no_tool: str
    no_more_tools: str


ENGLISH = OfflineTexts(
    introduction=(
        "> I am the built-in *offline model*: I answer by rule and know next to nothing. For a real one, set "
        "`agent.provider: claude` in `config.yaml`; `config.example.yaml` shows how."
    ),
    hello="Hello! Ask me what time it is in Tokyo, or what `(17 + 4) * 2` is. `help` shows what else I can do.",
    help=(
        "This is what I understand:\n\n"
        "- **what time is it in Tokyo?** or **how many days until 2026-12-24?**\n"
        "- **(17 + 4) * 2**, **15% of 80**, **what is sqrt(2)?**\n"
        "- **tell me a long story**: a long answer, to try `/cancel` on\n"
        '- **use TOOL {"argument": "value"}**: calls any tool that I am given\n'
    ),
    help_tools="\nMy tools here: {tools}. `/help` shows the commands.",
    help_no_tools="\nI am given no tools here. `/help` shows the commands.",
    thanks="You are welcome.",
    bye="Goodbye. What we said is kept; `/new` starts afresh.",
    echo="You said:\n\n{quote}\n\nI have no rule for that. `help` shows those I have.",
    image="I see that there is an image, but I can't look at it.",
    failed="The tool `{tool}` said no: {result}",
    no_tool="I would need the tool `{tool}` for that, and I am not given it.",
    no_more_tools="I was asked to finish without tools, so this is all I can say.",
)

CHINESE = OfflineTexts(
    introduction=(
        "> 我是内置的*离线模型*：只按规则回答，几乎什么都不懂。想用真正的模型，请在 `config.yaml` 里设置 "
        "`agent.provider: claude`；写法见 `config.example.yaml`。"
    ),
    hello="你好！可以问我“东京现在几点？”，或者让我算 `(17 + 4) * 2`。发送“帮助”看看我还会什么。",
    help=(
        "我听得懂这些：\n\n"
        "- **东京现在几点？**、**今天几号？**\n"
        "- **(17 + 4) * 2**、**算一下 12×7**\n"
        "- **讲个长故事**：一段很长的回答，可以用 `/cancel` 试试打断\n"
        '- **use 工具名 {"参数": "值"}**：调用给我的任何一个工具\n'
    ),
    help_tools="\n这里给我的工具：{tools}。`/help` 显示命令。",
    help_no_tools="\n这里没有给我工具。`/help` 显示命令。",
    thanks="不客气。",
    bye="再见。我们说过的话会保留；`/new` 重新开始。",
    echo="你说的是：\n\n{quote}\n\n这个我没有对应的规则。发送“帮助”看看我会什么。",
    image="我知道这里有一张图片，但我看不了。",
    failed="工具 `{tool}` 拒绝了：{result}",
    no_tool="这需要工具 `{tool}`，但这里没有给我。",
    no_more_tools="我被要求不再使用工具，所以只能说到这里。",
)

_CHAPTERS = (
    (
        "The keeper",
        "On a rock far out in the sea stood a lighthouse, and in it lived a keeper who wrote down everything.",
    ),
    (
        "The storm",
        "One night the wind tore the pages from her hands, and with them went the names of all the ships.",
    ),
    ("The question", "A captain called through the fog: *Who are we, and where were we going?* Nobody could say."),
    (
        "The second book",
        "But she had kept a second book, dry and closed, and wrote in it before she answered anyone.",
    ),
    (
        "The morning",
        "At dawn the ships lay in the harbour, each at its own place, and none had been counted twice.",
    ),
)

STORY = (
    "# The lighthouse keeper\n\n"
    "A long story, to see how a long answer looks, and to try `/cancel` on.\n\n"
    + "\n\n".join(
        f"## {number}. {title}\n\n{text} She climbed the stairs, all **one hundred and {number * 7}** of them, "
        "lit the lamp, and looked out. The sea was black, then grey, then black again; the beam went round and "
        "round, and whoever saw it knew that somebody was awake. “Slowly,” she said to the lamp, “we have all "
        "night.” And the lamp, which had never been in a hurry, went on turning."
        for number, (title, text) in enumerate(_CHAPTERS, 1)
    )
    + """

## What she wrote down

| Ship | Cargo | Arrived |
| --- | --- | ---: |
| Anna | salt and letters | 04:10 |
| Boreas | oranges | 04:55 |
| Coral | nothing, and proud of it | 06:30 |

1. Light the lamp.
2. Write it down *before* you answer.
3. Never count a ship twice:
   - not when it signals again,
   - not when the fog comes back.

She even had a rule for it, on the last page:

```python
def arrive(book: list[str], ship: str) -> bool:
    if ship in book:  # it signalled twice
        return False
    book.append(ship)
    return True
```

> Whoever reads this: the light is on.

That is the end of the story. Say `help` to see what else there is."""
)
