"""Input that no sane caller sends: it gets an error of ours, which prints, pickles and shows no secret."""

import pickle
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from threadkeep import (
    CubepiSchemaMismatch,
    InvalidIdError,
    MemoryCheckpointer,
    SQLiteCheckpointer,
    UnstorableValueError,
    open_checkpointer,
)


class Box(BaseModel):
    x: Any = None


class Raw(BaseModel):
    b: bytes


def nest(levels: int, value: Any) -> Any:
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [threading.Lock(), 10**5000, object()], ids=["lock", "huge", "object"])
async def test_an_id_that_is_no_text_makes_an_error_that_prints_and_pickles(value: Any) -> None:
    with pytest.raises(InvalidIdError) as caught:
        await MemoryCheckpointer().load(value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own


@pytest.mark.parametrize(
    "messages",
    [Box(), {"role": "user"}, "text", b"text", None, {1, 2}, iter([1])],
    ids=["message", "dict", "str", "bytes", "none", "set", "iterator"],
)
async def test_what_is_no_list_of_messages_is_not_taken_apart(messages: Any) -> None:
    cp = MemoryCheckpointer(message_type=Any)
    with pytest.raises(TypeError, match=f"messages is a {type(messages).__name__}: pass a list"):
        await cp.append("thread", messages)
    with pytest.raises(TypeError, match="pass a list"):
        await cp.messages.append("thread", messages, message_ids=["a"])
    assert await cp.load("thread") is None


async def test_a_dict_where_a_message_belongs_is_told_from_one() -> None:
    with pytest.raises(UnstorableValueError, match=r"is a dict and would come back .* a UserMessage: .* message_type"):
        await MemoryCheckpointer().append("thread", [{"role": "user", "content": []}])


@pytest.mark.parametrize("ttl", ["1", None, 0, -1, float("nan"), 604_801, timedelta(seconds=1)])
async def test_a_ttl_is_a_number_of_seconds(ttl: Any) -> None:
    cp = MemoryCheckpointer()
    with pytest.raises(ValueError, match="a number of seconds"):
        async with cp.runs.lease("thread", "run", ttl=ttl):
            raise AssertionError
    with pytest.raises(ValueError, match="a number of seconds"):
        await cp.ledger.issue("thread", "call", "tool", {}, ttl=ttl)
    assert await cp.load("thread") is None


async def test_a_key_that_cannot_be_printed_is_refused_with_its_path() -> None:
    with pytest.raises(UnstorableValueError) as caught:
        await MemoryCheckpointer().save_extra("thread", {"a": {10**5000: 1}})
    assert caught.value.path == "extra.a"


@pytest.mark.parametrize("answer", [nest(70, Box(x=nest(60, 1))), Raw(b=b"\xff")], ids=["deep", "bytes"])
async def test_an_answer_with_models_must_load_again_too(answer: Any) -> None:
    with pytest.raises(UnstorableValueError):
        await MemoryCheckpointer().save_hitl_answer("thread", "q", answer)


async def test_models_nested_without_end_are_refused() -> None:
    box = Box()
    for _ in range(1_500):
        box = Box.model_construct(x=box)
    with pytest.raises(UnstorableValueError):
        await MemoryCheckpointer(message_type=Box).append("thread", [box])


@pytest.mark.parametrize("url", ["postgresql://u:SECRET/x@127.0.0.1/x", "postgresql://u:p?SECRET@127.0.0.1/x"])
async def test_no_piece_of_a_password_is_left_in_what_led_to_the_error(url: str) -> None:
    with pytest.raises(ValueError, match="cannot be read") as caught:
        await open_checkpointer(url).__aenter__()
    error: BaseException | None = caught.value
    while error is not None:
        assert "SECRET" not in repr(error)
        error = error.__cause__ or error.__context__


async def test_a_parameter_that_the_driver_does_not_know_is_named_as_a_cause() -> None:
    with pytest.raises(ValueError, match="a parameter after its"):
        await open_checkpointer("postgresql://u@127.0.0.1/x?sslmode=bogus").__aenter__()


@pytest.mark.parametrize("oldest", ["", "zz"])
async def test_a_newer_schema_whose_limit_cannot_be_read_is_closed(tmp_path: Path, oldest: str) -> None:
    path = tmp_path / "newer.db"
    async with SQLiteCheckpointer(path):
        pass
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE cubepi_schema_version SET version = 9999, oldest_library = ?", [oldest])
    conn.close()
    with pytest.raises(CubepiSchemaMismatch):
        await SQLiteCheckpointer(path).__aenter__()
