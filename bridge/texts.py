"""What the bridge itself says to people, in English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent.texts import texts_for


@dataclass(frozen=True, slots=True)
class BridgeTexts:
    cancelled_one: str
    cancelled_many: str
    nothing_running: str
    not_allowed: str
    new_context: str
    help_heading: str
    commands: Mapping[str, str]
    status_model: str
    status_context: str
    status_requests: str
    status_defences: str
    status_quiet: str
    acted: Mapping[str, str]
    comma: str
    history: str
    queue_full: str
    waiting_for_slot: str
    pairing: str
    interrupted: str
    set_aside: str
    failed: str
    not_stored: str


ENGLISH = BridgeTexts(
    cancelled_one="Stopped.",
    cancelled_many="Stopped {count} requests.",
    nothing_running="Nothing was running.",
    not_allowed="Only people of this conversation can do that.",
    new_context="A new conversation starts here. The history is kept.",
    help_heading="Just write to me. The commands:",
    commands={
        "cancel": "stop the answer that is running",
        "new": "start a new conversation (the history is kept)",
        "status": "show the model, the context and what is running",
        "history": "send this conversation as a file",
        "help": "show this list",
    },
    status_model="Model: {model}",
    status_context="Context: about {tokens:,} of {window:,} tokens ({share:.0%})",
    status_requests="Requests: {running} running, {queued} waiting",
    status_defences="Defences: {acted}",
    status_quiet="nothing to do lately",
    acted={
        "trim.results": "long tool results cut",
        "trim.turns": "older turns dropped",
        "trim.compress": "turns shortened to their texts",
        "repair": "context repaired",
        "breaker.repeat": "repeated tool call refused",
        "breaker.cycle": "repeated tool call refused",
        "breaker.failures": "failing tool call refused",
        "breaker.tool_failures": "failing tool call refused",
        "breaker.refusals": "run stopped in a loop",
        "breaker.tool_critical": "run stopped in a loop",
        "breaker.bad_call": "broken tool call refused",
        "breaker.step_limit": "step limit reached",
        "tool.abandoned": "unstoppable tool let go",
        "recovery.wait": "waited for the provider",
        "recovery.compact": "context shortened for the provider",
        "recovery.empty_answer": "empty answer asked for again",
        "recovery.sanitize": "context repaired for the provider",
        "recovery.fallback": "other provider taken",
        "recovery.reset": "context reset",
        "recovery.failed": "provider failed",
    },
    comma=", ",
    history="This conversation, {count} messages.",
    queue_full="Too many messages are waiting here ({limit}). This one was not taken; please send it again later.",
    waiting_for_slot="waiting for a free place",
    pairing=(
        "This bot does not know you yet. Your id is {user_id}, your pairing code is {code}. Whoever runs the bot "
        "lets you in with:\n\n    steadybot allow {channel} {code}"
    ),
    interrupted=(
        "I was restarted while I worked on this, after tools had already changed something ({count} calls), so I did "
        "not simply run it again. Say “go on” if I should continue, or tell me what to do instead."
    ),
    set_aside="I could not finish this after {attempts} tries and have set it aside. Your message is kept.",
    failed="Something went wrong on my side. Your message is kept; whoever runs this bot finds more in the log.",
    not_stored="I can't store messages at the moment, so I can't take this one. Please send it again later.",
)

CHINESE = BridgeTexts(
    cancelled_one="已停止。",
    cancelled_many="已停止 {count} 个请求。",
    nothing_running="当前没有正在运行的请求。",
    not_allowed="只有此对话中的人可以这样做。",
    new_context="从这里开始新的对话。历史记录仍然保留。",
    help_heading="直接给我发消息即可。命令：",
    commands={
        "cancel": "停止正在运行的回答",
        "new": "开始新的对话（历史保留）",
        "status": "显示模型、上下文和正在运行的请求",
        "history": "将此对话作为文件发送",
        "help": "显示此列表",
    },
    status_model="模型：{model}",
    status_context="上下文：约 {tokens:,} / {window:,} token（{share:.0%}）",
    status_requests="请求：{running} 个运行中，{queued} 个等待中",
    status_defences="防线：{acted}",
    status_quiet="近期未触发",
    acted={
        "trim.results": "截短过长的工具结果",
        "trim.turns": "移出较早的轮次",
        "trim.compress": "将轮次压缩为文本",
        "repair": "修复上下文",
        "breaker.repeat": "拒绝重复的工具调用",
        "breaker.cycle": "拒绝重复的工具调用",
        "breaker.failures": "拒绝屡次失败的工具调用",
        "breaker.tool_failures": "拒绝屡次失败的工具调用",
        "breaker.refusals": "因循环而停止运行",
        "breaker.tool_critical": "因循环而停止运行",
        "breaker.bad_call": "拒绝无效的工具调用",
        "breaker.step_limit": "达到步数上限",
        "tool.abandoned": "放弃无法停止的工具",
        "recovery.wait": "等待模型服务",
        "recovery.compact": "按模型限制压缩上下文",
        "recovery.empty_answer": "空回答后重试",
        "recovery.sanitize": "按模型要求修复上下文",
        "recovery.fallback": "改用备用模型服务",
        "recovery.reset": "重置上下文",
        "recovery.failed": "模型服务出错",
    },
    comma="、",
    history="此对话，共 {count} 条消息。",
    queue_full="此处等待的消息过多（{limit} 条）。这条没有被接收，请稍后再发。",
    waiting_for_slot="正在等待空位",
    pairing="机器人还不认识你。你的 id 是 {user_id}，配对码是 {code}。机器人的管理者可用以下命令放行：\n\n    steadybot allow {channel} {code}",
    interrupted="处理这条消息时我被重启，而此前已有工具产生了影响（{count} 次调用），所以没有直接重来。如需继续请说“继续”，或告诉我该怎么做。",
    set_aside="尝试 {attempts} 次后仍无法完成，已搁置。你的消息已保存。",
    failed="我这边出了问题。你的消息已保存，详情请机器人的管理者查看日志。",
    not_stored="目前无法保存消息，所以不能接收这一条。请稍后再发。",
)


def bridge_texts(language: Literal["auto", "en", "zh"], sample: str = "") -> BridgeTexts:
    """As agent.texts.texts_for: `auto` goes by the sample, which is what the person wrote."""
    return CHINESE if texts_for(language, sample) is texts_for("zh") else ENGLISH
