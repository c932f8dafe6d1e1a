"""What is done about work whose caller is cancelled, where it must not be left half way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from threadkeep.sql.transactions import Decision

T = TypeVar("T")


async def to_its_end(
    work: Coroutine[Any, Any, T], decision: Decision | None = None, *, is_harmless_before: bool = False
) -> T:
    """Await work that must not be left half way. When cancelled, it ends first, without a commit if it is in time.

    With `is_harmless_before` it is cancelled itself, as long as nothing is decided: it has not sent anything yet.
    """
    doing = asyncio.ensure_future(work)
    doing.add_done_callback(_look)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        is_in_time = decision is not None and decision.cancel()
        if is_in_time and is_harmless_before:
            doing.cancel()
        await until_done(doing)
        raise


async def until_done(doing: asyncio.Future[Any]) -> None:
    """Wait for it, whoever cancels meanwhile: the caller has been cancelled already, and will say so."""
    while not doing.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([doing])


def _look(doing: asyncio.Future[Any]) -> None:
    """At its exception, so that nobody logs it when its caller is gone."""
    if not doing.cancelled():
        doing.exception()
