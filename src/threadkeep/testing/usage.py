"""cp.usage: what answers took, in tokens and money."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from threadkeep.errors import InvalidIdError, UnstorableValueError
from threadkeep.messages import AssistantMessage, TextContent, Usage
from threadkeep.records import UsageRecord, UsageTotals
from threadkeep.testing.forks import run_of
from threadkeep.testing.samples import BAD_IDS, said

TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def answer(message_id: str | None = "answer", **fields: Any) -> AssistantMessage:
    """An answer that knows what it took."""
    whole: dict[str, Any] = {
        "usage": Usage(input_tokens=3, output_tokens=4, cache_read_tokens=5, cache_write_tokens=6),
        "stop_reason": "tool_use",
        "model_id": "model",
        "provider_id": "provider",
        "run_id": "run",
    }
    return AssistantMessage(content=[TextContent(text="…")], message_id=message_id, **whole | fields)


RECORD = UsageRecord("thread", "answer", "run", "model", "provider", 3, 4, 5, 6, 0.0, "tool_use")
"""What is kept of it."""
EMPTY = UsageRecord("thread", "answer", None, "", "", 0, 0, 0, 0, 0.0, "")


class UsageContract:
    """usage.record, get, total, by_run, by_model."""

    pytestmark = pytest.mark.asyncio

    async def test_an_answer_tells_what_it_took(self, checkpointer: Any) -> None:
        assert await checkpointer.usage.get("thread", "answer") is None
        assert await checkpointer.usage.record("thread", answer(), cost=0.25) == replace(RECORD, cost=0.25)
        assert await checkpointer.usage.get("thread", "answer") == replace(RECORD, cost=0.25)
        # What is given wins over what the answer says.
        given: dict[str, Any] = {"input_tokens": 0, "cache_write_tokens": 7, "finish_reason": "stop"}
        given |= {"model_id": "given", "run_id": "another"}
        assert await checkpointer.usage.record("thread", answer(), **given) == replace(RECORD, **given)
        # Its record knows the id, and has the message.
        await checkpointer.append("thread", [answer(None, usage=None)])
        (record,) = await checkpointer.messages.list("thread")
        expected = replace(EMPTY, message_id=record.message_id, run_id="run", model_id="model", provider_id="provider")
        expected = replace(expected, finish_reason="tool_use", output_tokens=1)
        assert await checkpointer.usage.record("thread", record, output_tokens=1) == expected
        assert await checkpointer.usage.get("thread", record) == expected

    async def test_an_id_will_do(self, checkpointer: Any) -> None:
        assert await checkpointer.usage.record("thread", "answer") == EMPTY
        whole = replace(RECORD, message_id="other", cost=0.125)
        given = {name: getattr(whole, name) for name in TOKENS}
        assert whole == await checkpointer.usage.record(
            "thread",
            "other",
            **given,
            cost=0.125,
            finish_reason="tool_use",
            model_id="model",
            provider_id="provider",
            run_id="run",
        )
        assert await checkpointer.usage.get("thread", "other") == whole
        assert await checkpointer.usage.get("thread", "Other") is None
        assert await checkpointer.usage.get("nobody", "other") is None
        # The message need not be there, and the thread neither.
        assert (await checkpointer.load("thread")).messages == []
        assert await checkpointer.load("nobody") is None

    async def test_a_second_record_takes_the_place_of_the_first(self, checkpointer: Any) -> None:
        await checkpointer.usage.record("thread", answer(), cost=1)
        expected = replace(EMPTY, input_tokens=9, model_id="other")
        assert await checkpointer.usage.record("thread", "answer", input_tokens=9, model_id="other") == expected
        assert await checkpointer.usage.get("thread", "answer") == expected
        assert await checkpointer.usage.total("thread") == UsageTotals(1, 9)
        assert list(await checkpointer.usage.by_model("thread")) == ["other"]
        assert list(await checkpointer.usage.by_run("thread")) == [None]
        await asyncio.gather(*(checkpointer.usage.record("thread", "answer", cost=number) for number in range(5)))
        assert (await checkpointer.usage.total("thread")).answers == 1

    async def test_totals_are_sums(self, checkpointer: Any) -> None:
        for number, (run_id, model_id) in enumerate(
            [("a", "x"), ("a", "y"), ("A", "x"), (None, "x"), (None, None), ("é", "X")], 1
        ):
            tokens = {name: number * 10**power for power, name in enumerate(TOKENS)}
            await checkpointer.usage.record(
                "thread", f"{number}", run_id=run_id, model_id=model_id, cost=number / 8, **tokens
            )
        await checkpointer.usage.record("other", "1", run_id="a", model_id="x", cost=99, input_tokens=99)

        def totals(*numbers: int) -> UsageTotals:
            tokens = {name: sum(numbers) * 10**power for power, name in enumerate(TOKENS)}
            return UsageTotals(len(numbers), **tokens, cost=sum(numbers) / 8)

        assert await checkpointer.usage.total("thread") == totals(1, 2, 3, 4, 5, 6)
        assert await checkpointer.usage.by_run("thread") == {
            "a": totals(1, 2),
            "A": totals(3),
            None: totals(4, 5),
            "é": totals(6),
        }
        assert await checkpointer.usage.by_model("thread") == {
            "x": totals(1, 3, 4),
            "y": totals(2),
            "": totals(5),
            "X": totals(6),
        }
        await checkpointer.append("unused", [said("1")])
        for thread_id in ("unused", "nobody"):
            assert await checkpointer.usage.total(thread_id) == UsageTotals()
            assert await checkpointer.usage.by_run(thread_id) == await checkpointer.usage.by_model(thread_id) == {}

    async def test_sums_are_exact(self, checkpointer: Any) -> None:
        """Also where floating point is not, and where a sum is longer than 64-bit floats are."""
        large = 2**53 - 1
        costs: list[Any] = [0.1, 0.2, Decimal("0.3"), 0.000000001, 1_000_000, 999_999.999999999, 0]
        for number, cost in enumerate(costs):
            record = await checkpointer.usage.record("thread", f"{number}", cost=cost, input_tokens=large)
            assert (record.cost, type(record.cost)) == (float(cost), float)
        for total in (
            await checkpointer.usage.total("thread"),
            (await checkpointer.usage.by_run("thread"))[None],
            (await checkpointer.usage.by_model("thread"))[""],
        ):
            assert (total.cost, total.input_tokens) == (2_000_000.6, 7 * large)
            assert {type(getattr(total, name)) for name in ("answers", *TOKENS)} == {int}
            assert type(total.cost) is float
        for cost, kept in ((0.0000000014, 0.000000001), (Decimal("1e-10"), 0.0), (2.5, 2.5)):
            assert (await checkpointer.usage.record("rounded", "answer", cost=cost)).cost == kept

    async def test_an_answer_without_a_model_is_one_of_the_threads(self, checkpointer: Any) -> None:
        await checkpointer.threads.create("thread", model_id="own model", provider_id="own provider")
        for given, expected in (
            ({}, ("own model", "own provider")),
            ({"provider_id": "given"}, ("own model", "given")),
            ({"model_id": "given"}, ("given", "")),
            ({"model_id": "given", "provider_id": "given too"}, ("given", "given too")),
        ):
            record = await checkpointer.usage.record("thread", "answer", **given)
            assert (record.model_id, record.provider_id) == expected
            assert await checkpointer.usage.get("thread", "answer") == record
        record = await checkpointer.usage.record("thread", answer("silent", model_id="", provider_id=""))
        assert (record.model_id, record.provider_id) == ("own model", "own provider")
        await checkpointer.threads.update("thread", model_id="newer")
        assert set(await checkpointer.usage.by_model("thread")) == {"given", "own model"}

    async def test_a_fork_begins_with_no_usage_and_a_deleted_thread_has_none(self, checkpointer: Any) -> None:
        await run_of(checkpointer, "thread", "run", "1")
        (message,) = await checkpointer.messages.list("thread")
        await checkpointer.usage.record("thread", message, cost=1)
        await checkpointer.fork("thread", "fork", after_run_id="run")
        assert await checkpointer.usage.total("fork") == UsageTotals()
        assert await checkpointer.usage.get("fork", message.message_id) is None
        assert await checkpointer.usage.total("thread") == UsageTotals(1, cost=1.0)
        await checkpointer.threads.delete("thread")
        assert await checkpointer.usage.total("thread") == UsageTotals()
        assert await checkpointer.usage.get("thread", message.message_id) is None

    async def test_usage_is_part_of_a_transaction(self, checkpointer: Any) -> None:
        await checkpointer.usage.record("thread", "answer", cost=1)
        with suppress(ZeroDivisionError):
            async with checkpointer.transaction() as tx:
                await tx.usage.record("thread", "answer", cost=2)
                await tx.usage.record("new", "answer", cost=3)
                assert (await tx.usage.total("thread")).cost == 2.0
                raise ZeroDivisionError
        assert (await checkpointer.usage.total("thread")).cost == 1.0
        assert await checkpointer.load("new") is None

    async def test_bad_usage_is_refused(self, checkpointer: Any) -> None:
        for name in TOKENS:
            for count in (-1, 1.0, True, "1", 2**53):
                with pytest.raises(UnstorableValueError, match=name):
                    await checkpointer.usage.record("thread", "answer", **{name: count})
        negative = answer()
        assert negative.usage is not None
        negative.usage.output_tokens = -1
        with pytest.raises(UnstorableValueError, match="output_tokens"):
            await checkpointer.usage.record("thread", negative)
        for cost in (-0.01, float("nan"), float("inf"), 1_000_000.01, True, "1", None, Decimal("nan")):
            with pytest.raises(UnstorableValueError, match="cost"):
                await checkpointer.usage.record("thread", "answer", cost=cost)
        with pytest.raises(InvalidIdError, match="message"):
            await checkpointer.usage.record("thread", answer(None))
        for bad in BAD_IDS:
            with pytest.raises(InvalidIdError):
                await checkpointer.usage.record(bad, "answer")
            with pytest.raises(InvalidIdError):
                await checkpointer.usage.record("thread", bad)
            for name in ("run_id", "model_id", "provider_id", "finish_reason"):
                if bad is not None and (bad != "" or name == "run_id"):
                    with pytest.raises(InvalidIdError, match=name):
                        await checkpointer.usage.record("thread", "answer", **{name: bad})
        assert await checkpointer.load("thread") is None
