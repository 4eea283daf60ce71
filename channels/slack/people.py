"""Who writes: names, time zones, and whether they are full members of the workspace."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from channels.base import Sender
from channels.slack.decode import unescape
from channels.slack.faults import SlackFault
from channels.slack.payload import Json, flag_at, map_at, text_at
from channels.slack.wire import Wire

LOOKUP_TIMEOUT = 1.5  # seconds; Slack wants its answer within 3
FRESH_FOR = 3600.0  # seconds
KEPT = 2000
NAMES_LOOKED_UP = 10  # of people mentioned in one message

_STRANGERS = frozenset({"user_not_found", "user_not_visible", "users_not_found"})


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are, from auth.test."""

    user_id: str
    bot_id: str
    team_id: str
    enterprise_id: str = ""
    name: str = ""
    team: str = ""


def sender_of(user: Json, me: Identity) -> Sender:
    """A person from the `user` object of users.info."""
    profile = map_at(user, "profile")
    name = (
        text_at(profile, "display_name")
        or text_at(user, "real_name")
        or text_at(profile, "real_name")
        or text_at(user, "name")
        or text_at(user, "id")
    )
    guest = any(flag_at(user, key) for key in ("is_restricted", "is_ultra_restricted", "is_stranger"))
    return Sender(
        id=text_at(user, "id"),
        name=unescape(name),
        guest=guest or not _of_our_team(user, me),
        time_zone=text_at(user, "tz") or None,
    )


def _of_our_team(user: Json, me: Identity) -> bool:
    """Workspaces of one Enterprise organisation count as one."""
    team = text_at(user, "team_id")
    enterprise = text_at(user, "enterprise_user", "enterprise_id")
    return not team or team == me.team_id or (bool(enterprise) and enterprise == me.enterprise_id)


class People:
    """users.info behind a bounded cache; an entry that could not be renewed goes on being used."""

    def __init__(self, wire: Wire, me: Identity) -> None:
        self._wire = wire
        self.me = me
        self._known: OrderedDict[str, tuple[float, Sender]] = OrderedDict()

    async def sender(self, user_id: str) -> Sender:
        """Raises SlackFault when Slack can't tell and we never knew: whether they are a guest decides who is
        let in, so nothing is guessed."""
        known = self._known.get(user_id)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        try:
            answer = await self._wire.ask("users.info", timeout=LOOKUP_TIMEOUT, user=user_id)
        except SlackFault as fault:
            if fault.code in _STRANGERS:
                return Sender(user_id, user_id, guest=True)
            if known is not None:
                return known[1]
            raise
        return self._keep(sender_of(map_at(answer.data, "user"), self.me))

    async def names(self, user_ids: Iterable[str]) -> Mapping[str, str]:
        """The names of these people; those that Slack does not tell in time are left out."""
        wanted = [user_id for user_id in user_ids if user_id != self.me.user_id][:NAMES_LOOKED_UP]
        found = await asyncio.gather(*(self._name(user_id) for user_id in wanted))
        names = {user_id: name for user_id, name in zip(wanted, found, strict=True) if name}
        return {**names, self.me.user_id: self.me.name}

    async def _name(self, user_id: str) -> str:
        try:
            return (await self.sender(user_id)).name
        except SlackFault:
            return ""

    def _keep(self, sender: Sender) -> Sender:
        self._known[sender.id] = (time.monotonic() + FRESH_FOR, sender)
        self._known.move_to_end(sender.id)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return sender
