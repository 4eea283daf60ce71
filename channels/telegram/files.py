"""What came with a message: pictures and readable text with their content, all else by name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog
from telegram import Animation, Audio, Document, Message, PhotoSize, Sticker, Video, VideoNote, Voice

from channels.base import Attachment
from channels.telegram.faults import TelegramFault
from channels.telegram.wire import Wire

MOST_TEXT = 512 * 1024  # bytes of a text file that the model is given
MOST_IMAGE = 5 * 1024 * 1024  # bytes; the providers take no larger picture
DOWNLOAD_TIMEOUT = 30.0  # seconds; this conversation's next messages wait for it
IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

_TEXT_TYPES = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/toml", "application/javascript"}
)
_TEXT_NAMES = (
    *(".c", ".cfg", ".conf", ".cpp", ".css", ".csv", ".go", ".h", ".html", ".ini", ".java", ".js", ".json"),
    *(".jsonl", ".kt", ".log", ".md", ".php", ".py", ".rb", ".rs", ".rst", ".sh", ".sql", ".svg", ".toml"),
    *(".ts", ".tsv", ".tsx", ".txt", ".xml", ".yaml", ".yml"),
)

log = structlog.get_logger()


async def fetch(wire: Wire, message: Message) -> Attachment | None:
    """The attachment of a message, None where it has none. What can't be fetched is only described."""
    content = message.effective_attachment
    match content:
        case Document() | Audio() | Video() | Animation():
            return await _file(wire, content)
        case Voice():
            size = content.file_size or 0
            return Attachment("voice", "voice message", content.mime_type or "audio/ogg", size=size)
        case VideoNote():
            return Attachment("file", "video message", "video/mp4", size=content.file_size or 0)
        case Sticker():
            return Attachment("file", f"sticker {content.emoji or ''}".strip(), "image/webp")
        case None:
            return None
        case _ if message.photo:
            return await _photo(wire, message.photo)
        case _:
            return Attachment("file", type(content).__name__.lower(), "application/octet-stream")


async def _photo(wire: Wire, sizes: Sequence[PhotoSize]) -> Attachment:
    """The largest size that a provider takes."""
    fitting = [size for size in sizes if (size.file_size or 0) <= MOST_IMAGE] or [sizes[0]]
    best = max(fitting, key=lambda size: size.width * size.height)
    data = await _download(wire, best.file_id, MOST_IMAGE)
    return Attachment("image", "photo.jpg", "image/jpeg", data=data, size=best.file_size or 0)


async def _file(wire: Wire, content: Document | Audio | Video | Animation) -> Attachment:
    name = content.file_name or "file"
    media_type = content.mime_type or "application/octet-stream"
    size = content.file_size or 0
    if media_type in IMAGE_TYPES and size <= MOST_IMAGE:
        data = await _download(wire, content.file_id, MOST_IMAGE)
        return Attachment("image", name, media_type, data=data, size=size)
    if _is_text(name, media_type) and size <= MOST_TEXT:
        data = await _download(wire, content.file_id, MOST_TEXT)
        text = _readable(data) if data is not None else None
        if text is not None:
            return Attachment("text", name, media_type, text=text, size=size)
    return Attachment("file", name, media_type, size=size)


def _is_text(name: str, media_type: str) -> bool:
    return media_type.startswith("text/") or media_type in _TEXT_TYPES or name.lower().endswith(_TEXT_NAMES)


def _readable(data: bytes) -> str | None:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


async def _download(wire: Wire, file_id: str, most: int) -> bytes | None:
    try:
        async with asyncio.timeout(DOWNLOAD_TIMEOUT):
            file = await wire.ask("getFile", partial(wire.bot.get_file, file_id))
            if (file.file_size or 0) > most:
                return None
            data = bytes(await wire.ask("download", file.download_as_bytearray))
    except (TelegramFault, TimeoutError) as error:
        log.warning("telegram.file_not_read", error=str(error) or type(error).__name__)
        return None
    return data if len(data) <= most else None
