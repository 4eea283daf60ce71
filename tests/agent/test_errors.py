"""What an error is: the providers' table, near-misses, and the SDKs' own exceptions over real HTTP."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import NamedTuple

import anthropic
import httpx2
import openai
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.errors import (
    ErrorKind,
    ProviderFault,
    StreamBroken,
    classify,
    fault_of,
    is_context_overflow,
    is_message_format_error,
    overflow_input_budget,
    retry_after,
)

TABLE = Path(__file__).parents[1] / "cases" / "provider_errors.tsv"


class Row(NamedTuple):
    kind: ErrorKind
    status: int
    limit: int | None
    code: str | None
    text: str

    @property
    def fault(self) -> ProviderFault:
        return ProviderFault(self.status, self.code, self.text)


def rows() -> list[Row]:
    lines = [line for line in TABLE.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    assert lines[0] == "kind\tstatus\tlimit\tcode\ttext"
    table = []
    for line in lines[1:]:
        kind, status, limit, code, text = line.split("\t")
        table.append(Row(ErrorKind(kind), int(status), int(limit) if limit else None, code or None, text))
    return table


ROWS = rows()
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.status}-{row.text[:40]}")


@each_row
def test_every_row_of_the_table_is_classified_and_its_limit_read(row: Row) -> None:
    assert classify(row.fault) is row.kind
    assert overflow_input_budget(row.text) == row.limit


@each_row
def test_a_text_that_quotes_status_and_code_is_as_good_as_the_typed_error(row: Row) -> None:
    """Gateways and old adapters raise plain exceptions with everything in the text."""
    quoted = f"Error code: {row.status} - {{'error': {{'message': {row.text!r}, 'code': {row.code!r}}}}}"
    assert classify(RuntimeError(quoted)) is row.kind


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_the_table_has_every_kind(kind: ErrorKind) -> None:
    assert any(row.kind is kind for row in ROWS)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("overflow", "prompt is too long: 213462 tokens > 200000 maximum"),
        (
            "overflow",
            "This model's maximum context length is 128000 tokens. However, you requested 135564 tokens.",
        ),
        ("overflow", "Error code: 413 - request_too_large"),
        ("rate_limit", "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000"),
        ("rate_limit", "HTTP 429"),
        ("rate_limit", "429 Too Many Requests"),
        ("rate_limit", "You exceeded your current quota. Quota exceeded for metric: x Please retry in 32.1s."),
        ("quota", "You exceeded your current quota, please check your plan and billing details."),
        ("quota", "insufficient_quota"),
        ("transient", "Overloaded"),
        ("transient", "overloaded_error"),
        ("transient", "502 Bad Gateway"),
        ("transient", "HTTP/1.1 503 Service Unavailable"),
        ("transient", "upstream connect error or disconnect/reset before headers"),
        ("transient", "Connection error."),
        ("transient", "Request timed out."),
        ("transient", "context deadline exceeded"),
        ("auth", "Incorrect API key provided: sk-abc***"),
        ("auth", "The api_key client option must be set either by passing api_key to the client"),
        ("auth", "Error code: 401 - nothing more"),
        ("model", "The model `gpt-9` does not exist or you do not have access to it."),
        ("format", "400 messages.1: `tool_use` ids were found without `tool_result` blocks"),
        ("format", "invalid params, tool result's tool id(call_1) not found (2013)"),
        ("content_filter", "The prompt was blocked: prohibited_content"),
    ],
)
def test_a_bare_text_is_classified_by_its_words(kind: str, text: str) -> None:
    assert classify(ProviderFault(None, None, text)) == kind
    assert classify(Exception(text)) == kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "'NoneType' object is not subscriptable",
        "image dimension 5000 exceeds the allowed 4290",
        "expected 500 tokens, got 429",
        "the answer has 503 characters",
        "port 5002 of 4294",
        "the 404th turn of 529",
        "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens",
        "context manager exceeded its scope",
    ],
)
def test_a_number_or_word_that_merely_looks_like_one_says_nothing(text: str) -> None:
    assert classify(ProviderFault(None, None, text)) is ErrorKind.OTHER
    assert classify(ProviderFault(400, None, text)) is ErrorKind.OTHER


def test_status_and_code_outrank_words() -> None:
    assert classify(ProviderFault(401, None, "rate limit of invalid keys, prompt is too long")) is ErrorKind.AUTH
    assert classify(ProviderFault(400, None, "timeout must be below 600")) is ErrorKind.OTHER
    assert classify(ProviderFault(429, "insufficient_quota", "Rate limit reached")) is ErrorKind.QUOTA
    assert classify(ProviderFault(500, "overloaded_error", "x")) is ErrorKind.TRANSIENT
    assert classify(ProviderFault(200, "overloaded_error", "Overloaded")) is ErrorKind.TRANSIENT
    assert classify(ProviderFault(400, "context_length_exceeded", "…")) is ErrorKind.OVERFLOW


@given(st.text(max_size=200), st.none() | st.integers(0, 999), st.none() | st.text(max_size=20))
def test_classify_never_raises(text: str, status: int | None, code: str | None) -> None:
    assert classify(ProviderFault(status, code, text)) in ErrorKind


@given(st.integers(500, 599), st.text("abcdefghij ", max_size=40))
def test_every_5xx_is_transient(status: int, text: str) -> None:
    assert classify(ProviderFault(status, None, text)) is ErrorKind.TRANSIENT


# --- the two public text judges ---------------------------------------------------------------------------


@pytest.mark.parametrize("row", [row for row in ROWS if row.kind is ErrorKind.FORMAT])
def test_a_format_error_needs_the_marker_and_a_400_class_signal(row: Row) -> None:
    assert is_message_format_error(f"Error code: 400 - {row.text}")
    assert is_message_format_error(f"{{'type': 'invalid_request_error', 'message': {row.text!r}}}")
    assert not is_message_format_error("Error code: 400 - something else")


@pytest.mark.parametrize(
    "text",
    [
        "`tool_use` ids were found without `tool_result` blocks immediately after",
        "4000 `tool_use` ids were found without `tool_result` blocks",
        "toolu_400: `tool_use` ids were found without `tool_result` blocks",
        "Error code: 500 - `tool_use` ids were found without `tool_result` blocks",
        "Error code: 400 - tools.0: Input tag 'tool_use' is unknown",
        "400 Invalid value: 'tool_choice' is only allowed when 'tools' are specified.",
    ],
)
def test_half_a_format_error_is_none(text: str) -> None:
    assert not is_message_format_error(text)


@pytest.mark.parametrize(
    "text",
    [
        "Rate limit reached: Limit 30000, Requested 4000",
        "This would exceed your rate limit of 40,000 input tokens per minute. Please reduce the prompt length",
        "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens",
        "Too many tokens per minute for your plan, reduce your prompt or try again later",
        "context deadline exceeded",
        "image exceeds 5 MB maximum: 7340032 bytes > 5242880 bytes",
    ],
)
def test_what_is_no_overflow_names_no_limit(text: str) -> None:
    assert not is_context_overflow(text)
    assert overflow_input_budget(text) is None


@given(st.integers(1_000, 20_000_000))
def test_the_named_limit_is_read_with_and_without_commas(limit: int) -> None:
    for number in (str(limit), f"{limit:,}"):
        assert overflow_input_budget(f"prompt is too long: 99999999 tokens > {number} maximum") == limit
        assert overflow_input_budget(f"This model's maximum context length is {number} tokens. However") == limit


# --- exceptions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        StreamBroken("no stop reason"),
        TimeoutError(),
        asyncio.IncompleteReadError(b"", 10),
        ConnectionResetError(),
        BrokenPipeError(),
        OSError(errno.ENETUNREACH, "network is unreachable"),
        socket.gaierror(8, "nodename nor servname provided"),
        ssl.SSLError("handshake"),
        json.JSONDecodeError("Expecting value", "<html>", 0),
        httpx2.ConnectError("refused"),
        httpx2.ReadTimeout(""),
        httpx2.PoolTimeout(""),
        httpx2.RemoteProtocolError("peer closed connection without sending complete message body"),
        openai.APIConnectionError(request=httpx2.Request("POST", "http://x")),
        anthropic.APITimeoutError(request=httpx2.Request("POST", "http://x")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lost_connection_is_transient(error: Exception) -> None:
    assert classify(error) is ErrorKind.TRANSIENT


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "no such file"),
        OSError(errno.ENOSPC, "no space left on device"),
        KeyError("content"),
        httpx2.UnsupportedProtocol("Request URL is missing an 'http://' or 'https://' protocol."),
        httpx2.LocalProtocolError("Illegal header value"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_our_own_faults_are_not_retried_as_the_networks(error: Exception) -> None:
    assert classify(error) is ErrorKind.OTHER


def test_a_wrong_base_url_wrapped_by_an_sdk_is_not_retried() -> None:
    error = openai.APIConnectionError(request=httpx2.Request("POST", "http://x"))
    error.__cause__ = httpx2.UnsupportedProtocol("no protocol")
    assert classify(error) is ErrorKind.OTHER


class Answer(NamedTuple):
    """What the far side answers to every request."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


@asynccontextmanager
async def serving(answers: Iterable[Answer]) -> AsyncIterator[str]:
    """A server on the loopback that gives one answer after the other."""
    waiting = iter(answers)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        await reader.readexactly(length)
        answer = next(waiting)
        fields = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
        writer.write(
            f"HTTP/1.1 {answer.status} X\r\n{fields}content-length: {len(answer.body)}\r\n"
            "connection: close\r\n\r\n".encode()
            + answer.body
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def anthropic_errors(*answers: Answer, stream: bool = False) -> list[Exception]:
    """What the real SDK raises for each answer."""
    errors: list[Exception] = []
    async with (
        serving(answers) as url,
        anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0) as client,
    ):
        for _ in answers:
            try:
                if stream:
                    async with client.messages.stream(
                        model="m", max_tokens=5, messages=[{"role": "user", "content": "x"}]
                    ) as events:
                        await events.until_done()
                else:
                    await client.messages.create(
                        model="m", max_tokens=5, messages=[{"role": "user", "content": "x"}]
                    )
            except Exception as error:
                errors.append(error)
    assert len(errors) == len(answers)
    return errors


async def openai_errors(*answers: Answer, stream: bool = False) -> list[Exception]:
    """What the real SDK raises for each answer."""
    errors: list[Exception] = []
    async with serving(answers) as url, openai.AsyncOpenAI(api_key="k", base_url=url, max_retries=0) as client:
        for _ in answers:
            try:
                if stream:
                    async for _ in await client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "x"}], stream=True
                    ):
                        pass
                else:
                    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
            except Exception as error:
                errors.append(error)
    assert len(errors) == len(answers)
    return errors


async def from_anthropic(answer: Answer, *, stream: bool = False) -> Exception:
    return (await anthropic_errors(answer, stream=stream))[0]


async def from_openai(answer: Answer, *, stream: bool = False) -> Exception:
    return (await openai_errors(answer, stream=stream))[0]


def as_json(body: object) -> bytes:
    return json.dumps(body).encode()


HTTP_ROWS = [row for row in ROWS if row.status >= 400]


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_every_row_that_is_an_http_answer_is_the_same_through_the_real_sdks(provider: str) -> None:
    raising = anthropic_errors if provider == "anthropic" else openai_errors
    errors = await raising(*(Answer(row.status, as_json(body_of(row, provider))) for row in HTTP_ROWS))
    for row, error in zip(HTTP_ROWS, errors, strict=True):
        assert classify(error) is row.kind, row
        assert fault_of(error).text == row.text
        assert fault_of(error).status == row.status
        assert overflow_input_budget(fault_of(error).text) == row.limit


def body_of(row: Row, provider: str) -> object:
    if provider == "anthropic":
        return {"type": "error", "error": {"type": row.code or "error", "message": row.text}}
    code: str | int | None = int(row.code) if row.code and row.code.isdigit() else row.code
    return {"error": {"message": row.text, "type": "error", "param": None, "code": code}}


SSE = (("content-type", "text/event-stream"),)
MESSAGE_START = {
    "type": "message_start",
    "message": {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        ("transient", "overloaded_error", "Overloaded"),
        ("transient", "api_error", "Internal server error"),
        ("rate_limit", "rate_limit_error", "Number of requests has exceeded your rate limit"),
        ("overflow", "invalid_request_error", "prompt is too long: 213462 tokens > 200000 maximum"),
        ("format", "invalid_request_error", "messages.1: `tool_use` ids were found without `tool_result` blocks"),
        ("other", "invalid_request_error", "something else"),
    ],
)
async def test_an_error_inside_an_sse_stream_is_judged_by_its_type(kind: str, code: str, text: str) -> None:
    failure = {"type": "error", "error": {"type": code, "message": text}}
    body = (
        f"event: message_start\ndata: {json.dumps(MESSAGE_START)}\n\nevent: error\ndata: {json.dumps(failure)}\n\n"
    )
    error = await from_anthropic(Answer(200, body.encode(), SSE), stream=True)
    assert fault_of(error) == ProviderFault(200, code, text)
    assert classify(error) == kind


async def test_an_error_inside_an_openai_stream_has_no_status_but_a_code() -> None:
    body = 'data: {"error": {"message": "Provider returned error", "code": 502}}\n\n'
    error = await from_openai(Answer(200, body.encode(), SSE), stream=True)
    assert fault_of(error).status == 502
    assert classify(error) is ErrorKind.TRANSIENT
    body = 'data: {"error": {"message": "too much", "code": "context_length_exceeded"}}\n\n'
    error = await from_openai(Answer(200, body.encode(), SSE), stream=True)
    assert classify(error) is ErrorKind.OVERFLOW


@pytest.mark.parametrize(
    ("kind", "status", "body"),
    [
        # Gemini's list, with the reason in the details
        (
            "auth",
            400,
            [
                {
                    "error": {
                        "code": 400,
                        "message": "API key not valid.",
                        "status": "INVALID_ARGUMENT",
                        "details": [{"@type": "x", "reason": "API_KEY_INVALID"}],
                    }
                }
            ],
        ),
        # OpenRouter's wrapping of the provider's own error
        (
            "overflow",
            400,
            {
                "error": {
                    "message": "Provider returned error",
                    "code": 400,
                    "metadata": {
                        "raw": json.dumps({"error": {"message": "prompt is too long: 9 tokens > 5000 maximum"}}),
                        "provider_name": "Anthropic",
                    },
                }
            },
        ),
        # Azure's inner error
        (
            "content_filter",
            400,
            {
                "error": {
                    "message": "The response was filtered",
                    "code": "content_filter",
                    "innererror": {"code": "ResponsibleAIPolicyViolation"},
                }
            },
        ),
        # Ollama's plain string
        ("model", 404, {"error": "model 'qwen3' not found, try pulling it first"}),
        # vLLM's flat object
        (
            "overflow",
            400,
            {
                "object": "error",
                "message": "This model's maximum context length is 4096 tokens.",
                "type": "BadRequestError",
                "code": 400,
            },
        ),
        # MiniMax
        ("quota", 429, {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}),
        # FastAPI's detail
        ("overflow", 400, {"detail": "maximum context length is 4096 tokens"}),
        # An HTML page of a proxy
        ("transient", 502, "<html><title>502 Bad Gateway</title></html>"),
        ("transient", 503, None),
        ("auth", 401, {}),
    ],
)
async def test_bodies_of_every_shape_are_read(kind: str, status: int, body: object) -> None:
    data = body.encode() if isinstance(body, str) else as_json(body) if body is not None else b""
    error = await from_openai(Answer(status, data))
    assert classify(error) == kind


# --- when to come again -----------------------------------------------------------------------------------


async def with_headers(status: int = 429, text: str = "slow down", /, **headers: str) -> Exception:
    fields = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    body = as_json({"type": "error", "error": {"type": "rate_limit_error", "message": text}})
    return await from_anthropic(Answer(status, body, (("content-type", "application/json"), *fields)))


@pytest.mark.parametrize(
    ("seconds", "headers"),
    [
        (7.0, {"retry_after": "7"}),
        (1.5, {"retry_after": "1.5"}),
        (0.0, {"retry_after": "0"}),
        (0.0, {"retry_after": "-3"}),
        (0.25, {"retry_after_ms": "250", "retry_after": "9"}),
        (360.0, {"x_ratelimit_reset_tokens": "6m0s"}),
        (0.017, {"x_ratelimit_reset_requests": "17ms"}),
        (90.951, {"x_ratelimit_reset_tokens": "1m30.951s"}),
        (5.0, {"retry_after": "5", "x_ratelimit_reset_tokens": "6m0s"}),
        # Only what is used up counts.
        (
            2.0,
            {
                "x_ratelimit_remaining_requests": "0",
                "x_ratelimit_reset_requests": "2s",
                "x_ratelimit_remaining_tokens": "500",
                "x_ratelimit_reset_tokens": "1h2m",
            },
        ),
        (None, {"retry_after": "soon"}),
        (None, {"retry_after": "nan"}),
        (None, {"retry_after": "inf"}),
        (None, {}),
    ],
)
async def test_headers_say_when_to_come_again(seconds: float | None, headers: dict[str, str]) -> None:
    found = retry_after(await with_headers(429, "slow down", **headers))
    assert found == (None if seconds is None else pytest.approx(seconds))


async def test_a_date_counts_from_the_servers_own_clock() -> None:
    server_now = datetime(2020, 1, 1, tzinfo=UTC)
    later = server_now + timedelta(seconds=42)
    assert retry_after(
        await with_headers(
            date=format_datetime(server_now, usegmt=True), retry_after=format_datetime(later, usegmt=True)
        )
    ) == pytest.approx(42)
    assert retry_after(
        await with_headers(
            date=format_datetime(server_now, usegmt=True),
            anthropic_ratelimit_input_tokens_remaining="0",
            anthropic_ratelimit_input_tokens_reset=later.isoformat().replace("+00:00", "Z"),
        )
    ) == pytest.approx(42)


async def test_reset_headers_mean_nothing_when_no_limit_was_hit() -> None:
    """They come with every answer; an overloaded server must not make us wait for the next minute."""
    assert retry_after(await with_headers(529, x_ratelimit_reset_tokens="6m0s")) is None
    assert retry_after(await with_headers(529, retry_after="3")) == 3.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (6.0, "Please try again in 6s."),
        (0.35, "Please try again in 350ms."),
        (90.5, "Please try again in 1m30.5s. Visit the docs"),
        (3612.0, "try again in 1h0m12s"),
        (32.1, "Please retry in 32.1s."),
        (20.0, "Please retry after 20 seconds."),
        (1.0, "please try again after 1 seconds"),
        (65.0, "Try again in 1 minute and 5 seconds"),
        (12.0, "'retryDelay': '12s'"),
        (30.0, "请在30秒后重试"),
        (120.0, "请在2分钟后重试"),
        (3600.0, "请在 1 小时后重试"),
        (330.0, "Please try again in 5M30S."),
        (None, "Please try again later."),
        (None, "try again in 6 steps"),
        (None, "Limit 30000, Used 29000, Requested 4000"),
    ],
)
def test_a_text_says_when_to_come_again(seconds: float | None, text: str) -> None:
    found = retry_after(ProviderFault(429, None, text))
    assert found == (None if seconds is None else pytest.approx(seconds))
    assert retry_after(RuntimeError(text)) == found


async def test_a_delay_in_the_bodys_details_is_found() -> None:
    body = [
        {
            "error": {
                "code": 429,
                "status": "RESOURCE_EXHAUSTED",
                "message": "Resource exhausted",
                "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "27s"}],
            }
        }
    ]
    error = await from_openai(Answer(429, as_json(body)))
    assert classify(error) is ErrorKind.RATE_LIMIT
    assert retry_after(error) == 27.0


header_values = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)


@example("9" * 400)
@example("2024-13-45T00:00:00Z")
@given(header_values)
def test_no_header_value_makes_it_raise(value: str) -> None:
    response = httpx2.Response(
        429, headers={"retry-after": value, "x-ratelimit-reset": value}, request=httpx2.Request("POST", "http://x")
    )
    found = retry_after(openai.RateLimitError("x", response=response, body=None))
    assert found is None or found >= 0


@given(st.text(max_size=300))
def test_no_text_makes_it_raise(text: str) -> None:
    found = retry_after(RuntimeError(text))
    assert found is None or found >= 0


def test_importing_the_module_imports_no_sdk() -> None:
    judge: Callable[[BaseException], ErrorKind] = classify
    names = judge.__globals__
    assert "anthropic" not in names
    assert "openai" not in names


@pytest.mark.parametrize("sdk", ["anthropic", "openai", "httpx", "httpx2", "httpcore", "httpcore2"])
def test_a_lost_connection_is_known_by_its_name_wherever_in_an_sdk_it_is_defined(sdk: str) -> None:
    for module in (sdk, f"{sdk}._exceptions"):
        lost = type("NetworkError", (Exception,), {"__module__": module})
        assert classify(type("ReadError", (lost,), {"__module__": "elsewhere"})("gone")) is ErrorKind.TRANSIENT
    assert classify(type("NetworkError", (Exception,), {"__module__": f"my_{sdk}"})("gone")) is ErrorKind.OTHER


def test_a_code_is_read_from_a_bodys_depth_and_a_yes_or_no_is_none() -> None:
    error = Exception("x")
    error.body = {"error": {"code": True, "details": [{"reason": "context_length_exceeded"}]}}  # type: ignore[attr-defined]  # as SDKs have it
    assert fault_of(error).code == "context_length_exceeded"
    assert classify(error) is ErrorKind.OVERFLOW
