"""Every text that the core itself puts before the model or the user, in English and Chinese."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Language = Literal["auto", "en", "zh"]


@dataclass(frozen=True, slots=True)
class Texts:
    """One language's texts; fields in braces are filled with str.format. Those up to `cut_mark` are for the
    model, the rest for the user."""

    lost_result: str
    cancelled_result: str
    not_answered: str
    summary_heading: str
    summary_asked: str
    summary_answered: str
    summary_prompt: str
    nudge: str
    step_limit: str
    refused_repeat: str
    refused_failures: str
    refused_tool: str
    refused_cycle: str
    input_not_json: str
    input_missing: str
    input_cut_off: str
    unknown_tool: str
    tool_timeout: str
    tool_crashed: str
    tool_abandoned: str
    cut_mark: str
    cancelled: str
    breaker_stop: str
    step_limit_reached: str
    reset_overflow: str
    reset_format: str
    refusal: str
    content_filter: str
    empty_answer: str
    answer_cut: str
    wait_rate_limit: str
    wait_transient: str
    failed_auth: str
    failed_quota: str
    failed_model: str
    failed_rate_limit: str
    failed_transient: str
    failed_other: str


ENGLISH = Texts(
    lost_result="The result of this tool call was lost. Go on from what is known, or call the tool again.",
    cancelled_result="Cancelled by user before this tool finished.",
    not_answered="(This was not answered.)",
    summary_heading="[Earlier conversation, {turns} turns]",
    summary_asked="asked: {text}",
    summary_answered="answered: {text}",
    summary_prompt=(
        "Below are notes on the earlier part of a conversation between a user and an assistant. Write them anew "
        "as one dense summary of at most {limit} characters: facts, names, numbers, decisions, open questions, "
        "wishes of the user. No introduction, no comment."
    ),
    nudge=(
        "The tool has run and given its result. Reply to the user from it now, and do not call the same tool with "
        "the same arguments again."
    ),
    step_limit=(
        "The limit of steps for this request is reached. Without calling any tool, sum up for the user what was "
        "done, what was found and what is still open."
    ),
    refused_repeat=(
        "Not run: {tool} was called with these arguments {count} times in a row, and its result was already given "
        "above. Use that result or do something else."
    ),
    refused_failures=(
        "Not run: {tool} failed {count} times in a row with these arguments. Change the arguments or find another "
        "way."
    ),
    refused_tool=(
        "Not run: {tool} failed {count} times in a row. It does not seem to work now; find another way or tell the "
        "user."
    ),
    refused_cycle=(
        "Not run: the same {length} calls were repeated in a cycle {count} times, and their results were already "
        "given above. Use those results or do something else."
    ),
    input_not_json="Not run: the arguments of {tool} are no valid JSON object: {detail}. Send them again, complete.",
    input_missing="Not run: the arguments of {tool} do not fit its schema: {detail}. Send them again, corrected.",
    input_cut_off=(
        "Not run: the arguments of {tool} were cut off by the output limit. Send a shorter call, or split the work "
        "into several."
    ),
    unknown_tool="Not run: there is no tool {tool}. The tools are: {known}.",
    tool_timeout="The tool did not finish within {seconds:g} s and was stopped.",
    tool_crashed="The tool failed: {detail}",
    tool_abandoned="The tool did not stop when it was told to, and was left behind.",
    cut_mark="\n[… {gone} characters left out here …]\n",
    cancelled="_(Cancelled by user)_",
    breaker_stop=(
        "I stopped: the tool {tool} was called again and again without getting anywhere. Please give me other details, "
        "ask in another way, or check whether that service works."
    ),
    step_limit_reached="_(Stopped at the limit of {steps} steps.)_",
    reset_overflow=(
        "The conversation has become too long for the model even after compaction, so I have reset my context. "
        "The history is kept. Send a shorter message, or say “go on” and I start again from your last one."
    ),
    reset_format=(
        "The model refused the conversation's form, so I have reset my context. The history is kept. Say “go on” "
        "and I start again from your last message."
    ),
    refusal="The model declined to answer this.",
    content_filter="The provider's content filter stopped this answer. Please put it another way.",
    empty_answer="The model gave an empty answer. Please ask again.",
    answer_cut="_(Cut off at the output limit. Say “go on” for the rest.)_",
    wait_rate_limit="The provider's rate limit is reached; trying again in {seconds:.0f} s",
    wait_transient="The provider does not answer; trying again in {seconds:.0f} s",
    failed_auth="The model's provider refused our key. Whoever runs this bot has to look at its configuration.",
    failed_quota="The account with the model's provider has run out of credit. Whoever runs this bot has to top it up.",
    failed_model="The configured model is not available. Whoever runs this bot has to look at its configuration.",
    failed_rate_limit="The provider's rate limit is still reached. Please try again in a few minutes.",
    failed_transient="The model's provider can't be reached now. Your message is kept; please try again in a few minutes.",
    failed_other="The model's provider refused the request. Your message is kept; the log says more.",
)

CHINESE = Texts(
    lost_result="这次工具调用的结果已丢失。请根据已知信息继续，或重新调用该工具。",
    cancelled_result="用户在该工具完成前取消了操作。",
    not_answered="（这条消息没有得到回答。）",
    summary_heading="[此前的对话，共 {turns} 轮]",
    summary_asked="问：{text}",
    summary_answered="答：{text}",
    summary_prompt=(
        "下面是用户与助手此前对话的记录。请改写成一段不超过 {limit} 个字符的精炼摘要：事实、名称、数字、决定、"
        "未决问题、用户的要求。不要前言，不要评论。"
    ),
    nudge="工具已成功执行并返回结果。请基于这些信息向用户做出回复，不要用相同参数重复调用相同的工具。",
    step_limit="本次请求已达到步数上限。请不要再调用任何工具，直接用文字向用户总结：做了什么，得到了什么，还有什么没有完成。",
    refused_repeat="未执行：{tool} 已用相同参数连续调用 {count} 次，结果已在上文给出。请使用该结果，或换一种做法。",
    refused_failures="未执行：{tool} 用这些参数已连续失败 {count} 次。请更换参数，或换一种方法。",
    refused_tool="未执行：{tool} 已连续失败 {count} 次，目前似乎不可用。请换一种方法，或告诉用户。",
    refused_cycle="未执行：同样的 {length} 个调用已循环重复 {count} 次，结果已在上文给出。请使用这些结果，或换一种做法。",
    input_not_json="未执行：{tool} 的参数不是有效的 JSON 对象：{detail}。请重新发送完整的参数。",
    input_missing="未执行：{tool} 的参数不符合其模式：{detail}。请改正后重新发送。",
    input_cut_off="未执行：{tool} 的参数因输出长度上限被截断。请缩短调用，或把工作分成几次。",
    unknown_tool="未执行：没有名为 {tool} 的工具。可用的工具有：{known}。",
    tool_timeout="该工具在 {seconds:g} 秒内没有完成，已被停止。",
    tool_crashed="工具失败：{detail}",
    tool_abandoned="该工具在要求停止后仍未停止，已被放弃。",
    cut_mark="\n[…… 此处省略 {gone} 个字符 ……]\n",
    cancelled="_（已被用户取消）_",
    breaker_stop="我已停止：工具 {tool} 被反复调用却没有进展。请提供其他信息，换一种问法，或检查该服务是否正常。",
    step_limit_reached="_（已在 {steps} 步的上限处停止。）_",
    reset_overflow="对话过长，压缩后模型仍无法处理，我已重置当前上下文。历史记录仍然保留。请发送更短的消息，或说“继续”，我会从你的上一条消息重新开始。",
    reset_format="模型拒绝了对话的格式，我已重置当前上下文。历史记录仍然保留。请说“继续”，我会从你的上一条消息重新开始。",
    refusal="模型拒绝回答这个问题。",
    content_filter="服务商的内容过滤器拦截了这次回答。请换一种说法。",
    empty_answer="模型返回了空的回答。请再问一次。",
    answer_cut="_（已达到输出长度上限而被截断。说“继续”可得到其余部分。）_",
    wait_rate_limit="已达到服务商的速率限制，{seconds:.0f} 秒后重试",
    wait_transient="服务商没有响应，{seconds:.0f} 秒后重试",
    failed_auth="模型服务商拒绝了我们的密钥。请机器人的管理者检查配置。",
    failed_quota="模型服务商的账户余额不足。请机器人的管理者充值。",
    failed_model="配置的模型不可用。请机器人的管理者检查配置。",
    failed_rate_limit="仍然受到服务商的速率限制。请几分钟后再试。",
    failed_transient="目前无法连接模型服务商。你的消息已保存，请几分钟后再试。",
    failed_other="模型服务商拒绝了请求。你的消息已保存，详情见日志。",
)


def texts_for(language: Language, sample: str = "") -> Texts:
    """The texts of a language; `auto` takes Chinese where the sample (the user's text) has Chinese characters
    and no Japanese kana, else English."""
    if language == "auto":
        chinese = any("\u4e00" <= char <= "\u9fff" for char in sample)
        kana = any("\u3040" <= char <= "\u30ff" for char in sample)
        language = "zh" if chinese and not kana else "en"
    return CHINESE if language == "zh" else ENGLISH
