"""`cp.usage`: what answers took, in tokens and money, and the sums of it."""

from __future__ import annotations

from decimal import Decimal
from math import isfinite
from typing import Any

from threadkeep.errors import UnstorableValueError
from threadkeep.fields import read_field
from threadkeep.ids import check_id, check_optional_id
from threadkeep.message_ids import message_id_in, refuse_foreign
from threadkeep.parts import checked_count
from threadkeep.records import MessageRecord, StoredTotals, UsageRecord, UsageRow, UsageTotals
from threadkeep.store import Store

_PER_DOLLAR = 10**9


class UsageBook:
    """What the answers of a checkpointer's threads took, or of a transaction's."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def record(
        self,
        thread_id: str,
        message: Any,
        *,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cache_read_tokens: int | None = None,
        cache_write_tokens: int | None = None,
        cost: float | Decimal = 0,
        finish_reason: str | None = None,
        model_id: str | None = None,
        provider_id: str | None = None,
        run_id: str | None = None,
    ) -> UsageRecord:
        """Write down what an answer took, once it is there. Again for the same message, this replaces what was there.

        `message` is the answer itself, which is then asked for all that is not given here (`message_id`, `run_id`,
        `model_id`, `provider_id`, `usage`, `stop_reason`), or its id, or its record. It need not be appended yet.
        An answer without a model is one of the thread's own. `cost` is in dollars, kept to the billionth.
        """
        inner = message.message if isinstance(message, MessageRecord) else message
        usage = read_field(inner, "usage")
        named = message if read_field(message, "message_id") is None else read_field(message, "message_id")
        thread_id = check_id("thread_id", thread_id)
        refuse_foreign(thread_id, message)
        row = UsageRow(
            thread_id=thread_id,
            message_id=message_id_in("message", named),
            run_id=check_optional_id("run_id", _first(run_id, read_field(inner, "run_id"))),
            model_id=_checked_name("model_id", _first(model_id, read_field(inner, "model_id"))),
            provider_id=_checked_name("provider_id", _first(provider_id, read_field(inner, "provider_id"))),
            input_tokens=_tokens("input_tokens", input_tokens, usage),
            output_tokens=_tokens("output_tokens", output_tokens, usage),
            cache_read_tokens=_tokens("cache_read_tokens", cache_read_tokens, usage),
            cache_write_tokens=_tokens("cache_write_tokens", cache_write_tokens, usage),
            cost=_in_billionths(cost),
            finish_reason=_checked_name("finish_reason", _first(finish_reason, read_field(inner, "stop_reason"))),
        )
        return _record(await self._store.record_usage(row))

    async def get(self, thread_id: str, message_id: Any) -> UsageRecord | None:
        """What this answer took, or None if nobody wrote it down. It is given by its id, or as in `record`."""
        thread_id = check_id("thread_id", thread_id)
        refuse_foreign(thread_id, message_id)
        row = await self._store.get_usage(thread_id, message_id_in("message_id", message_id))
        return None if row is None else _record(row)

    async def total(self, thread_id: str) -> UsageTotals:
        """What all answers of the thread took. A fork begins with nothing: what it copied was paid for elsewhere."""
        stored = await self._store.usage_totals(check_id("thread_id", thread_id), None)
        return _totals(stored[0]) if stored else UsageTotals()

    async def by_run(self, thread_id: str) -> dict[str | None, UsageTotals]:
        """The same for each run; under None, for answers of no run."""
        stored = await self._store.usage_totals(check_id("thread_id", thread_id), "run_id")
        return {row.key: _totals(row) for row in stored}

    async def by_model(self, thread_id: str) -> dict[str, UsageTotals]:
        """The same for each model; under "", for answers of which no model is known."""
        stored = await self._store.usage_totals(check_id("thread_id", thread_id), "model_id")
        return {row.key or "": _totals(row) for row in stored}


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _tokens(name: str, given: int | None, usage: Any) -> int:
    return checked_count(name, _first(given, read_field(usage, name), 0))


def _checked_name(name: str, value: Any) -> str:
    return check_id(name, value) if value else ""


def _in_billionths(cost: Any) -> int:
    if type(cost) not in (int, float, Decimal) or not isfinite(cost) or not 0 <= cost <= 10**6:
        raise UnstorableValueError("cost", f"is {cost!r:.40}: it must be a number of dollars, from 0 to a million")
    return round(Decimal(repr(cost) if isinstance(cost, float) else cost) * _PER_DOLLAR)


def _record(row: UsageRow) -> UsageRecord:
    return UsageRecord(**{**row._asdict(), "cost": row.cost / _PER_DOLLAR})


def _totals(row: StoredTotals) -> UsageTotals:
    return UsageTotals(*row[1:-1], cost=row.cost / _PER_DOLLAR)
