"""Messages out: posted, changed, removed; each at the place that it is for."""

from __future__ import annotations

from functools import partial

from telegram import (
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    LinkPreviewOptions,
    MessageEntity,
    ReplyParameters,
)

from channels.base import OutFile, Place
from channels.telegram.faults import FaultKind, TelegramFault
from channels.telegram.live import Body
from channels.telegram.rich_text import RichText, unit_offsets
from channels.telegram.texts import ENGLISH
from channels.telegram.wire import Wire, thread_to_write

_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)


async def post(wire: Wire, place: Place, body: Body, *, reply_to: str | None = None, silent: bool = False) -> str:
    """Posts a message and returns its id. Raises TelegramFault."""
    call = partial(
        wire.bot.send_message,
        wire.chats.target(place.chat),
        body.rich.text,
        entities=entities_of(body.rich),
        message_thread_id=thread_to_write(place),
        reply_markup=_keyboard(body),
        reply_parameters=_reply_parameters(reply_to),
        link_preview_options=_NO_PREVIEW,
        disable_notification=silent,
    )
    message = await wire.write("sendMessage", place, call)
    return str(message.message_id)


async def change(wire: Wire, place: Place, message_id: str, body: Body) -> bool:
    """Makes a message look like this; False where it is gone. Raises TelegramFault.

    Whether it arrived is never in doubt for long: the same change may be made again.
    """
    call = partial(
        wire.bot.edit_message_text,
        body.rich.text,
        wire.chats.target(place.chat),
        int(message_id),
        entities=entities_of(body.rich),
        reply_markup=_keyboard(body),
        link_preview_options=_NO_PREVIEW,
    )
    try:
        await wire.write("editMessageText", place, call)
    except TelegramFault as fault:
        if fault.kind is FaultKind.NO_MESSAGE:
            return False
        if fault.kind is not FaultKind.NOT_MODIFIED:
            fault.uncertain = False
            raise
    return True


async def remove(wire: Wire, place: Place, message_id: str) -> bool:
    """False where it was gone, or can't be removed any more. Raises TelegramFault."""
    call = partial(wire.bot.delete_message, wire.chats.target(place.chat), int(message_id))
    try:
        await wire.write("deleteMessage", place, call)
    except TelegramFault as fault:
        if fault.kind is FaultKind.NO_MESSAGE:
            return False
        raise
    return True


async def draft(wire: Wire, place: Place, draft_id: int, rich: RichText) -> None:
    """Shows a text that is being written, for half a minute; private chats only. Raises TelegramFault."""
    call = partial(
        wire.bot.send_message_draft,
        wire.chats.target(place.chat),
        draft_id,
        rich.text,
        message_thread_id=thread_to_write(place),
        entities=entities_of(rich),
    )
    await wire.write("sendMessageDraft", place, call)


async def send_file(wire: Wire, place: Place, file: OutFile) -> None:
    """Raises TelegramFault."""
    call = partial(
        wire.bot.send_document,
        wire.chats.target(place.chat),
        file.data,
        filename=file.name,
        message_thread_id=thread_to_write(place),
        disable_content_type_detection=True,
    )
    await wire.write("sendDocument", place, call)


def entities_of(rich: RichText) -> list[MessageEntity]:
    """The spans as the Bot API wants them: offsets and lengths in UTF-16 units."""
    at = unit_offsets(rich.text)
    return [
        MessageEntity(span.kind, at[span.start], at[span.end] - at[span.start], span.url, None, span.language)
        for span in rich.spans
    ]


def _keyboard(body: Body) -> InlineKeyboardMarkup | None:
    if body.cancel is None:
        return None
    return InlineKeyboardMarkup([[InlineKeyboardButton(ENGLISH.cancel, callback_data=body.cancel)]])


def _reply_parameters(reply_to: str | None) -> ReplyParameters | None:
    if reply_to is None or not reply_to.isdigit():
        return None
    return ReplyParameters(int(reply_to), allow_sending_without_reply=True)
