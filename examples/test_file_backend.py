"""The file backend, held to Threadkeep's conformance kit, and to what it promises beyond it."""

import asyncio
from pathlib import Path

import pytest

from threadkeep import CheckpointCorruptionError, InvalidIdError, UnstorableValueError
from threadkeep.testing import contract_for
from threadkeep.testing.samples import BAD_IDS, DIFFERENT_IDS, GOOD_IDS, STORABLE_VALUES, said, texts

from .file_backend import FileCheckpointer


@pytest.fixture
def checkpointer(tmp_path: Path) -> FileCheckpointer:
    return FileCheckpointer(tmp_path)


def entry_one(folder: Path) -> Path:
    (entry,) = folder.rglob("1.json")
    return entry


class TestFileBackend(contract_for(FileCheckpointer)):
    """Every contract whose methods it has: the minimal one."""


@pytest.mark.parametrize("thread_id", GOOD_IDS)
async def test_every_good_id_has_a_folder(checkpointer: FileCheckpointer, thread_id: str) -> None:
    await checkpointer.append(thread_id, [said("one")])
    assert texts((await checkpointer.load(thread_id)).messages) == ["one"]


@pytest.mark.parametrize("thread_id", BAD_IDS)
async def test_every_bad_id_is_refused(checkpointer: FileCheckpointer, thread_id: object) -> None:
    with pytest.raises(InvalidIdError):
        await checkpointer.append(thread_id, [said("one")])


@pytest.mark.parametrize(("one", "other"), DIFFERENT_IDS)
async def test_ids_are_compared_byte_for_byte(checkpointer: FileCheckpointer, one: str, other: str) -> None:
    await checkpointer.append(one, [said("one")])
    assert await checkpointer.load(other) is None


async def test_any_json_comes_back_as_it_went_in(checkpointer: FileCheckpointer) -> None:
    await checkpointer.save_extra("thread", {"values": STORABLE_VALUES})
    await checkpointer.append("thread", [said("one", values=STORABLE_VALUES)])
    data = await checkpointer.load("thread")
    assert repr(data.extra["values"]) == repr(STORABLE_VALUES)
    assert repr(data.messages[0].metadata["values"]) == repr(STORABLE_VALUES)


async def test_what_would_not_come_back_is_refused(checkpointer: FileCheckpointer) -> None:
    with pytest.raises(UnstorableValueError):
        await checkpointer.save_extra("thread", {"ratio": float("nan")})
    assert await checkpointer.load("thread") is None


async def test_writers_at_once_lose_nothing(checkpointer: FileCheckpointer, tmp_path: Path) -> None:
    others = [checkpointer, FileCheckpointer(tmp_path), FileCheckpointer(tmp_path)]
    await asyncio.gather(
        *(others[n % 3].append("thread", [said(f"{n}a"), said(f"{n}b")]) for n in range(60)),
        *(others[n % 3].save_extra("thread", {str(n): n}) for n in range(60)),
    )
    data = await checkpointer.load("thread")
    stored = texts(data.messages)
    assert sorted(stored) == sorted(f"{n}{part}" for n in range(60) for part in "ab")
    assert all(stored[i][:-1] == stored[i + 1][:-1] for i in range(0, 120, 2))
    assert data.extra == {str(n): n for n in range(60)}


async def test_a_write_that_was_not_finished_is_not_there(checkpointer: FileCheckpointer, tmp_path: Path) -> None:
    await checkpointer.append("thread", [said("one")])
    entry_one(tmp_path).with_name("unfinished-x").write_text('{"messages":[{"ro')
    await checkpointer.append("thread", [said("two")])
    assert texts((await checkpointer.load("thread")).messages) == ["one", "two"]


async def test_a_damaged_entry_is_named_and_not_skipped(checkpointer: FileCheckpointer, tmp_path: Path) -> None:
    await checkpointer.append("thread", [said("one")])
    entry_one(tmp_path).write_text("{")
    with pytest.raises(CheckpointCorruptionError, match=r"1\.json"):
        await checkpointer.load("thread")
