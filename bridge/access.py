"""Who may talk to the bot (bridge-and-channels §2). A denied message is not stored beyond a counter."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from bridge.ports import Store
from bridge.texts import bridge_texts
from channels.base import Inbound, Outgoing, Sender

CODE_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
CODE_LENGTH = 8


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """`everyone`: whoever reaches the channel (console). `members`: all but guests, who must be listed (Slack).
    `listed`: those in `allow` or paired (Telegram)."""

    mode: Literal["everyone", "members", "listed"]
    allow: frozenset[str] = frozenset()
    admins: frozenset[str] = frozenset()


class Access:
    """The policies of all channels, and the people who were let in later by `steadybot allow`."""

    def __init__(self, store: Store, policies: Mapping[str, AccessPolicy]) -> None:
        self._store = store
        self._policies = policies

    async def may_talk(self, channel: str, sender: Sender) -> bool:
        policy = self._policies[channel]
        if policy.mode == "everyone" or sender.id in policy.allow or sender.id in policy.admins:
            return True
        if policy.mode == "members" and not sender.guest:
            return True
        return sender.id in await self._store.allowed(channel)

    def is_admin(self, channel: str, sender: Sender) -> bool:
        policy = self._policies[channel]
        return policy.mode == "everyone" or sender.id in policy.admins

    async def deny(self, inbound: Inbound) -> Outgoing | None:
        """Counts a denied message; the answer, once for each person and only in private, is how to get in."""
        channel = inbound.place.channel
        await self._store.count(f"denied.{channel}")
        if inbound.place.kind != "direct" or self._policies[channel].mode != "listed":
            return None
        fresh = "".join(secrets.choice(CODE_ALPHABET) for _ in range(CODE_LENGTH))
        code, is_new = await self._store.pairing_code(channel, inbound.sender.id, fresh, datetime.now(UTC))
        if not is_new:
            return None
        texts = bridge_texts("auto", inbound.text)
        return Outgoing(inbound.place, texts.pairing.format(user_id=inbound.sender.id, code=code, channel=channel))
