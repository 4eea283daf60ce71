"""How providers word their errors: structured codes and phrases, by kind (four-defences §5.4).

Only data and patterns. A phrase is as long as it must be to mean one thing: "context deadline exceeded" is a
timeout, "max_tokens … exceeds" is about the output, and a rate limit's advice names "billing" too.
"""

from __future__ import annotations

import re

_LOOKED_AT = 8_000
"""Characters of an error text that are searched; a proxy may put a whole page into it."""


def _any(*phrases: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{phrase})" for phrase in phrases), re.IGNORECASE | re.DOTALL)


def has(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.search(text, 0, _LOOKED_AT) is not None


def _codes(spaced: str) -> frozenset[str]:
    return frozenset(spaced.split())


# Codes are compared in lower case. Bare numbers are MiniMax's and Zhipu's own codes.
OVERFLOW_CODES = _codes(
    "context_length_exceeded request_too_large context_window_exceeded model_context_window_exceeded "
    "exceed_context_size_error tokens_limit_reached prompt_too_long input_too_long 1261"
)
QUOTA_CODES = _codes(
    "insufficient_quota billing_error billing_hard_limit_reached billing_not_active insufficient_balance "
    "insufficient_funds exceeded_current_quota_error arrearage allocationquota.freetieronly prepaidbilloverdue "
    "postpaidbilloverdue commodityquotaexceeded payment_required credits_exhausted "
    "1008 1113 1304 1308 1309 1310 2056"
)
FILTER_CODES = _codes(
    "content_filter content_filter_error content_policy_violation responsibleaipolicyviolation "
    "data_inspection_failed datainspectionfailed sensitive_words_detected invalid_prompt prohibited_content "
    "moderation_blocked 1026 1027 1301"
)
AUTH_CODES = _codes(
    "authentication_error invalid_api_key invalidapikey invalid_authentication_error incorrect_api_key "
    "account_deactivated permission_error permission_denied unauthenticated unauthorized api_key_invalid "
    "unsupported_country_region_territory access_terminated_error accessdenied accessdeniedexception "
    "invalid_iam_token organization_restricted 2049"
)
MODEL_CODES = _codes(
    "model_not_found model_not_found_error not_found_error deploymentnotfound modelnotfound model_not_available "
    "model_not_supported model_decommissioned model_terms_required resource_not_found_error model.accessdenied "
    "accessdenied.unpurchased unsupported_model invalid_model model_permission_blocked_org "
    "model_permission_blocked_project 1211 1220 1221 1311"
)
TRANSIENT_CODES = _codes(
    "overloaded_error engine_overloaded_error overloaded server_error internal_server_error api_error "
    "internal_error internalerror internalfailure unavailable serviceunavailable service_unavailable "
    "serviceunavailableexception internalserverexception modeltimeoutexception modelnotreadyexception "
    "modelerrorexception deadline_exceeded timeout_error request_timeout requesttimeout gateway_timeout "
    "capacity_exceeded server_is_overloaded server_overloaded slow_down bad_gateway connection_error "
    "stream_error 1000 1001 1013 1024 1033 1234"
)
RATE_CODES = _codes(
    "rate_limit_exceeded rate_limit_error rate_limit_reached_error rate_limited ratelimitexceeded "
    "too_many_requests toomanyrequests throttling throttlingexception limit_requests limit_burst_rate "
    "resource_exhausted requests tokens 1002 1039 1041 1302 1303 1305 1312"
)
REQUEST_CODES = _codes(
    "invalid_request_error invalid_request invalid_argument invalid_value invalidparameter bad_request "
    "badrequest badrequesterror bad_request_error validationexception invalid_params 1210 1213 1214 2013"
)
"""The request is wrong; the text says how. They are a 400-class signal and nothing more."""

REQUEST_TOO_LARGE = _any(
    r"request too large\b.{0,300}\b(?:requested|reduced?)\b", r"\bextra usage is required for long context"
)
"""A rate limit that no waiting heals, since this one request is above it."""

RATE_WORDS = _any(
    r"\brate[ _-]?limit",
    r"\btoo many requests\b",
    r"\b(?:tokens|requests) per (?:min|minute|hour|day|second)\b",
    r"\bthrottl(?:ed|ing)\b|\bresource has been exhausted\b|\bquota exceeded for metric\b",
    r"\bplease wait before trying again\b|\b(?:current|max) (?:request limit|rpm|tpm)\b",
    r"速率限制|请求频率|频率(?:限制|过快|过高)|并发(?:数|请求)?(?:过多|过高|超)|限流|请求过多",
)
OVERFLOW_WORDS = _any(
    "|".join(OVERFLOW_CODES - {"1261"}),
    r"\b(?:prompt|input)(?: is)? too long\b",
    r"\bmax(?:imum)?\.? (?:(?:context|prompt|sequence) (?:length|window|size)|(?:input|model) length)\b",
    r"\bexceed(?:s|ed|ing)? (?:(?:the|this|its|your|model|model's|available|maximum|max|allowed) )*"
    r"(?:context|prompt|input) (?:window|length|size|limit|token limit)\b",
    r"\bcontext[ _](?:window|length|size|limit)\b[^.]{0,40}\b(?:exceed|overflow)",
    r"\b(?:longer|greater|larger|more) than (?:the )?(?:model'?s )?(?:max(?:imum)? )?(?:model|context)"
    r" (?:length|window|size)\b",
    r"\b(?:input|prompt) token count\b.{0,60}\b(?:exceeds|only supports)\b",
    r"\binput tokens exceed\b",
    r"\bexceed(?:s|ed)? (?:the )?model token limit\b",
    r"\brange of input length should be\b",
    r"\breduce (?:the )?(?:length|size) of (?:the |your )?(?:messages?|prompt|input|conversation|context)\b",
    r"\breduce your (?:prompt|input|messages?)\b",
    r"\btoo large for model with \d+ maximum context\b",
    r"\bmust be less than max_seq_len\b",
    r"\bcontext length (?:of|is) only\b",
    r"\btotal (?:message )?tokens?\b.{0,40}\bexceed",
    r"\binput length \d+ exceeds\b",
    r"\btokens \+ `?max_new_tokens`? must be\b",
    r"\binputs?`? must have less than \d+ tokens\b",
    r"\btoo many (?:input )?tokens: ",
    r"\bnumber of tokens in the prompt (?:cannot exceed|exceeds)\b",
    r"\brequest (?:body )?(?:too large|exceeds the maximum (?:allowed )?(?:size|number of bytes))\b",
    r"\brequest_too_large\b|\b(?:request entity|payload|content) too large\b",
    r"\bmessages(?:\[\d+\]\S*|\.\d+\S*)?['\"`]?: (?:string|array) too long\b",
    r"(?:上下文|prompt|输入(?:内容|长度|文本)?|(?<!max_)tokens?(?:数量?)?|消息)[^图。]{0,8}(?:超长|过长|超过|超出)",
)

FORMAT_WORDS = _any(
    r"`?tool_use`? ids were found without `?tool_result`?",
    r"`?tool_use`? blocks? must have a corresponding",
    r"unexpected `?tool_use_id`?",
    r"`?tool_result`? blocks? must have a corresponding",
    r"`?tool_use`? ids must be unique|multiple `?tool_result`? blocks",
    r"\btool_use\.id\b|\btool_result\.tool_use_id\b",
    r"(?:tool_calls|function_call)\W{0,3} must be followed by",
    r"did not have response messages",
    r"insufficient tool messages following",
    r"messages? with role \W{0,2}(?:tool|function)\W{0,2} must be a response to",
    r"must be a response to a prece+ding",
    r"tool result'?s? (?:tool )?id\b.{0,80}not found",
    r"tool call (?:id|result)\b.{0,80}(?:not found|does not follow|mismatch)",
    r"tool_call_id\b[^.]{0,60}(?:not found|missing|invalid|does not match)|duplicate value for \W?tool_call_id",
    r"invalid 'messages\[\d+\]\.tool_calls",
    r"missing (?:required )?(?:parameter|field)?\W{0,3}(?:messages\S*\.)?tool_call_id",
    r"no tool (?:output|call) found for function call",
    r"function response parts is equal to the number of function call parts",
    r"function (?:call|response) turn comes immediately after",
    r"missing a `?thought_signature",
    r"same number of function calls and responses",
    r"expected toolresult blocks|toolresult blocks at \S+ exceeds",
    r"text content blocks must be non-?empty",
    r"(?:messages|text content|content) (?:must|should) (?:have|be|contain) non-?(?:empty|whitespace)",
    r"assistant message must have either content or tool_calls",
    r"(?:first message|conversation) must (?:start with|use) (?:a|the) .{0,3}user.{0,3} (?:message|role)",
    r"conversation must end with a user message|last message (?:cannot|must not) (?:be|have)",
    r"expected last role user",
    r"roles must alternate|unexpected role .{1,20} after role",
    r"chat content is empty|messages 参数非法|messages parameter is illegal",
    r"invalid `?signature`? in `?(?:redacted_)?thinking`?",
    r"expected `?(?:thinking|redacted_thinking)`?.{0,40}found",
    r"(?:thinking|redacted_thinking)`? blocks? .{0,60}cannot be modified",
    r"reasoning_content`?.{0,80}(?:must be passed back|is missing|missing)|missing `?reasoning_content",
)
REQUEST_WORDS = _any(
    r"(?<![\w.,])4(?:00|22)(?![\w.,]\w|\w| (?:tokens|characters|messages(?!\.)|ms|s|seconds|bytes)\b)",
    r"\binvalid_request|\binvalid[ _]?(?:request|params?|parameters?|argument)\b|\bbad[ _]?request",
    r"\bvalidationexception\b|\bunprocessable entity\b|\(2013\)",
)
"""A 400-class signal in a text."""

QUOTA_WORDS = _any(
    r"\bexceeded (?:your|the) (?:current|monthly|account) quota\b",
    r"\binsufficient[ _](?:account[ _])?(?:quota|balance|credits?|funds)\b",
    r"\bcredit balance is too low\b|\bout of credits?\b|\b(?:requires|need) more credits\b",
    r"\bcredits? (?:are|is|have been|has been) (?:depleted|exhausted|used up)\b",
    r"\bbilling (?:hard )?limit\b|\bspend(?:ing)? limit\b|\bapi usage limits?\b|\bpayment required\b",
    r"\baccount is (?:not active|in arrears|suspended due to (?:insufficient|billing))",
    r"\baccount is in good standing\b|\b(?:in arrears|arrearage|overdue payment)\b",
    r"\bfree (?:tier|quota)\b.{0,40}\b(?:exhausted|used up)\b",
    r"余额不足|欠费|额度(?:不足|已用完|已用尽|用尽)|账户(?:余额|已停用)|充值|套餐(?:已)?(?:到期|用尽)",
)
RATE_NOT_QUOTA = _any(r"\bretry in \d|\bquota exceeded for metric\b|\bper (?:min|minute|day)\b|\bperminute")
"""Gemini words its rate limits as an exceeded quota, and then says when to come again."""

FILTER_WORDS = _any(
    r"content (?:management|filtering|safety) policy|\bcontent_filter\b(?!_)|content policy violation",
    r"\bcontent exists risk\b|\bdata_?inspection_?failed\b|\binappropriate content\b",
    r"rejected as a result of our safety system|considered high risk",
    r"(?:prompt|input|request|content|output|response) (?:was|were|is|has been|been) (?:flagged|blocked|filtered)",
    r"\b(?:new_)?sensitive(?:_| )(?:content|words|information)\b|violat\w+ (?:our|the) (?:usage|content) polic",
    r"\bblocked by (?:our |the )?(?:content|safety)|\bprohibited_content\b",
    r"敏感(?:内容|词|信息)|不安全(?:或敏感)?内容|内容(?:安全|审核)|违规内容",
)
AUTH_WORDS = _any(
    r"\bapi[ _-]?key\b[^.]{0,40}\b(?:not valid|invalid|incorrect|not found|expired|missing|revoked|disabled|"
    r"must be set)\b",
    r"\b(?:invalid|incorrect|no|missing|expired|wrong|malformed|valid) (?:x-)?api[ _-]?key\b",
    r"\bauthentication fail|\binvalid authentication\b|\bmissing authentication\b|\bmissing credentials\b",
    r"\bcould not resolve authentication\b|\bunauthorized\b|\bauthentication_error\b|\bpermission[ _]denied\b",
    r"\borganization has been disabled\b|\baccount (?:has been|is) (?:deactivated|disabled)\b",
    r"\b(?:country, region, or territory|user location is) not supported\b",
    r"\bnot supported in your (?:region|country)",
    r"身份验证失败|鉴权失败|令牌(?:已过期|无效)|(?:api ?key|密钥).{0,6}(?:无效|错误|不正确)",
)
MODEL_WORDS = _any(
    r"\bmodel\b[^.]{0,100}\b(?:does not exist|not found|is not (?:available|supported|found)|not exist\b|"
    r"has been (?:deprecated|decommissioned|retired)|is deprecated)",
    r"\b(?:unknown|invalid|unsupported|no such|nonexistent) model\b(?! (?:output|response))",
    r"\bdoes not support (?:tools|tool use|tool calling|function calling|chat)\b",
    r"\bno endpoints found\b|\bdeployment (?:\S+ ){0,4}does not exist\b",
    r"\bmodel_not_found\b|\bnot a valid model id\b",
    r"\bno access to (?:the )?model\b|\baccess to model denied\b|^model: \S+$",
    r"模型(?:\S{0,40})?(?:不存在|已下线|未开通)",
)
TRANSIENT_WORDS = _any(
    r"\boverloaded(?:_error)?\b|\b(?:over|at|no) capacity\b|\btry again later\b|\btemporarily unavailable\b",
    r"\btime[ds]?[ -]?out\b|\bcontext deadline exceeded\b|\bdeadline_exceeded\b",
    r"\b(?:bad gateway|service unavailable|gateway time-?out|internal server error|server_error|api_error)\b",
    r"\bconnection (?:error|reset|refused|aborted|closed|terminat|attempts failed)|\bdisconnect(?:ed|/reset)\b",
    r"\bupstream (?:connect )?error\b|\bincomplete chunked read\b|\bunexpected eof\b|\bbroken pipe\b",
    r"服务(?:器)?(?:繁忙|过载|不可用|异常)|系统繁忙|网络错误|稍后(?:重试|再试)",
)

_STATUS_IN_TEXT = re.compile(
    r"(?:\b(?:error|status|http|https|response)(?:[ _-]?code)?\b[\s:='\"(<]{1,3}(?:1\.1 )?|^\W{0,2}|<)"
    r"([45]\d\d)(?![\w.,]\w|\w)"
    r"(?! (?:tokens|characters|messages(?!\.)|ms|s|seconds|bytes|requests)\b)"
    r"|\b([45]\d\d) (?:bad request|unauthorized|payment required|forbidden|not found|request timeout|"
    r"request entity|payload too|content too|unprocessable|too many|internal server|bad gateway|"
    r"service unavailable|gateway time)",
    re.IGNORECASE,
)


def status_in(text: str) -> int | None:
    """The HTTP status that a text names as such; a number that merely looks like one is none."""
    found = _STATUS_IN_TEXT.search(text, 0, _LOOKED_AT)
    return int(found[1] or found[2]) if found else None


_CODE_IN_TEXT = re.compile(r"['\"](?:code|type|status)['\"]\s*:\s*['\"]?([\w.]+)")


def codes_in(text: str) -> list[str]:
    """Structured codes in a text that quotes an error's JSON, in lower case."""
    return [code.lower() for code in _CODE_IN_TEXT.findall(text[:_LOOKED_AT])]


_NUMBER = r"(\d{1,3}(?:,\d{3})+|\d+)"
_LIMITS = tuple(
    re.compile(phrase.replace("<N>", _NUMBER), re.IGNORECASE | re.DOTALL)
    for phrase in (
        r"maximum input length of <N>",
        r"prompt is too long: [\d,]+ tokens > <N> maximum",
        r"context limit: [\d,]+ \+ [\d,]+ > <N>",
        r"too large for model with <N> maximum context",
        r"range of input length should be \[\s*\d+\s*,\s*<N>\s*\]",
        r"request too large\b.{0,300}?\blimit:? <N>",
        (
            r"(?:model|max(?:imum)?|context|prompt|input|sequence|available|allowed)"
            r" (?:context|prompt|input|sequence|model|token)s? (?:length|window|size|limit)(?: is| of|:)?"
            r"(?: only)? ?\(?<N>(?! (?:characters|bytes))"
        ),
        r"context (?:length|window|size|limit)(?: is| of)? only <N>",
        r"context (?:length|window|size|limit) ?(?:is|of|:|\() ?<N>",
        r"maximum number of (?:input )?tokens allowed:? \(?<N>",
        (
            r"(?:only supports? up to|configured limit of|exceeds the limit of|exceeds? limit of|cannot exceed|"
            r"model limit \(|while limit is|exceeds the maximum length(?: of)?) ?<N>"
        ),
        r"max_seq_len \(<N>",
        r"max_new_tokens`? must be <= <N>",
        r"must have less than <N> tokens",
        r"max size: <N> tokens",
        r"\bn_ctx\W{1,4}<N>",
    )
)


def limit_in(text: str) -> int | None:
    """The input limit in tokens that an overflow's text names."""
    for pattern in _LIMITS:
        if found := pattern.search(text, 0, _LOOKED_AT):
            return int(found[1].replace(",", "")) or None
    return None
