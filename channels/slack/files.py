"""Files that come with a message: pictures as bytes, readable text as text, the rest by name only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import structlog
from yarl import URL

from channels.base import Attachment
from channels.slack.payload import Json, number_at, text_at

FILES = 8  # of one message that are fetched
IMAGE_SIZE = 5_000_000  # bytes; what model providers take
TEXT_SIZE = 200_000  # bytes
FETCH_TIMEOUT = 6.0  # seconds for all files of a message; Slack sends the event again, which is no harm

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_TEXTS = frozenset(
    {"application/json", "application/xml", "application/x-yaml", "application/yaml", "application/javascript"}
)

log = structlog.get_logger()


async def fetch_files(
    session: aiohttp.ClientSession, token: str, files: Sequence[Json], own_host: str | None
) -> tuple[Attachment, ...]:
    """The attachments, in their order; one that can't be had in time is told of by name only."""
    try:
        async with asyncio.timeout(FETCH_TIMEOUT):
            fetched = await asyncio.gather(*(_fetch(session, token, file, own_host) for file in files[:FILES]))
    except TimeoutError:
        log.warning("slack.files_late", files=len(files))
        fetched = [_by_name(file) for file in files[:FILES]]
    return tuple(fetched) + tuple(_by_name(file) for file in files[FILES:])


async def _fetch(session: aiohttp.ClientSession, token: str, file: Json, own_host: str | None) -> Attachment:
    bare = _by_name(file)
    is_image = bare.media_type in IMAGES
    if not (is_image or _is_text(file)) or bare.size > (IMAGE_SIZE if is_image else TEXT_SIZE):
        return bare
    data = await _download(session, token, file, own_host, IMAGE_SIZE if is_image else TEXT_SIZE)
    if data is None:
        return bare
    if is_image:
        return Attachment("image", bare.name, bare.media_type, data=data, size=len(data))
    text = _readable(data)
    if text is None:
        return bare
    return Attachment("text", bare.name, bare.media_type, text=text, size=len(data))


def _by_name(file: Json) -> Attachment:
    media_type = text_at(file, "mimetype") or "application/octet-stream"
    name = text_at(file, "name") or text_at(file, "title") or "file"
    size = number_at(file, "size")
    return Attachment("voice" if media_type.startswith("audio/") else "file", name, media_type, size=size)


def _is_text(file: Json) -> bool:
    media_type = text_at(file, "mimetype")
    return media_type.startswith("text/") or media_type in _TEXTS or text_at(file, "mode") == "snippet"


def _readable(data: bytes) -> str | None:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


async def _download(
    session: aiohttp.ClientSession, token: str, file: Json, own_host: str | None, most: int
) -> bytes | None:
    url = text_at(file, "url_private_download") or text_at(file, "url_private")
    if not _is_slack(url, own_host):
        return None
    try:
        # The token goes to the host that was checked, and to no other by a redirect.
        async with session.get(
            url, headers={"Authorization": f"Bearer {token}"}, allow_redirects=False
        ) as response:
            # Where files:read is missing, Slack gives a log-in page.
            log_in = response.content_type == "text/html" and text_at(file, "mimetype") != "text/html"
            if response.status != 200 or log_in:
                return None
            data = await response.content.read(most + 1)
            while len(data) <= most and (more := await response.content.read(most + 1 - len(data))):
                data += more
    except (aiohttp.ClientError, TimeoutError) as error:
        log.warning("slack.file_not_read", error=type(error).__name__)
        return None
    return data if len(data) <= most else None


def _is_slack(url: str, own_host: str | None) -> bool:
    try:
        parsed = URL(url)
    except ValueError:
        return False
    host = parsed.host or ""
    if own_host is not None and host == own_host:
        return True
    return parsed.scheme == "https" and (host == "slack.com" or host.endswith(".slack.com"))
