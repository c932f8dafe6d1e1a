"""cp.files: what content was seen at which path."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from threadkeep.errors import InvalidIdError, MessageTooLargeError, UnstorableValueError
from threadkeep.testing.samples import BAD_IDS, DIFFERENT_IDS, STORABLE_VALUES, UNSTORABLE_VALUES, same

PATHS = [
    "",
    " ",
    "notes.txt",
    "Notes.txt",
    "notes.txt ",
    "/home/ada/notes.txt",
    "C:\\Users\\ada\\50%_off.txt",
    "'; DROP TABLE cubepi_files; --",
    "NUL \0 and\nlines",
    "日本/🙂",
    "long/" * 2_000,
    "long/" * 2_000 + "x",
    *(name for pair in DIFFERENT_IDS for name in pair),
]


class FilesContract:
    """files.put, get, by_path, delete."""

    pytestmark = pytest.mark.asyncio

    async def test_of_content_a_hash_and_the_size_are_kept(self, checkpointer: Any) -> None:
        before = datetime.now(UTC)
        content = b"a \0 file \xff"
        plain = await checkpointer.files.put("notes.txt", content=content)
        assert plain.content_id == hashlib.sha256(content).hexdigest()
        assert (plain.path, plain.size, plain.token_count) == ("notes.txt", len(content), None)
        assert (plain.media_type, plain.summary, plain.metadata) == ("", "", {})
        assert before <= plain.stored_at <= datetime.now(UTC)
        stored = await checkpointer.files.get(plain.content_id)
        assert stored == plain == await checkpointer.files.by_path("notes.txt")
        assert stored.stored_at.tzinfo is UTC
        for same_content in (bytearray(content), memoryview(content)):
            assert (await checkpointer.files.put("copy", content=same_content)).content_id == plain.content_id
        assert (await checkpointer.files.put("empty", content=b"")).size == 0

    async def test_every_field_of_a_file_comes_back(self, checkpointer: Any) -> None:
        values = {f"value {number}": value for number, value in enumerate(STORABLE_VALUES)}
        given: dict[str, Any] = {
            "media_type": "text/plain",
            "size": 2**53 - 1,
            "token_count": 0,
            "summary": "what is \0 in it 🙂" * 1_000,
            "metadata": values,
        }
        whole = await checkpointer.files.put("path", content_id="own id", **given)
        for file in (whole, await checkpointer.files.get("own id"), await checkpointer.files.by_path("path")):
            assert (file.content_id, file.path, file.stored_at) == ("own id", "path", whole.stored_at)
            assert same({name: getattr(file, name) for name in given}, given)
        assert (await checkpointer.files.put("path", content=b"abc", size=7)).size == 7
        values["value 0"] = "changed"
        whole.metadata.clear()
        assert (await checkpointer.files.get("own id")).metadata["value 0"] is None

    async def test_the_latest_is_found(self, checkpointer: Any) -> None:
        """Of a path, whatever was there before; of content, wherever it was."""
        for path, content_id in (("p", "a"), ("p", "b"), ("q", "a"), ("q", "c")):
            file = await checkpointer.files.put(path, content_id=content_id)
            assert await checkpointer.files.by_path(path) == await checkpointer.files.get(content_id) == file
        assert (await checkpointer.files.by_path("p")).content_id == "b"
        assert (await checkpointer.files.get("a")).path == "q"
        again = await checkpointer.files.put("p", content_id="a", summary="again", metadata={"n": 1}, size=1)
        assert await checkpointer.files.by_path("p") == await checkpointer.files.get("a") == again
        # All that was noted is replaced, not merged.
        once_more = await checkpointer.files.put("p", content_id="a")
        assert (once_more.summary, once_more.metadata, once_more.size) == ("", {}, None)
        assert await checkpointer.files.by_path("p") == once_more
        await asyncio.gather(*(checkpointer.files.put("p", content_id="a", size=number) for number in range(5)))
        assert (await checkpointer.files.by_path("p")).content_id == "a"

    async def test_a_file_can_be_forgotten(self, checkpointer: Any) -> None:
        for path, content_id in (("p", "old"), ("p", "a"), ("q", "a")):
            await checkpointer.files.put(path, content_id=content_id)
        assert await checkpointer.files.delete("a") is True
        assert await checkpointer.files.delete("a") is False
        assert await checkpointer.files.get("a") is None
        assert await checkpointer.files.by_path("q") is None
        assert (await checkpointer.files.by_path("p")).content_id == "old"
        for nowhere in ("nobody's", "OLD"):
            assert await checkpointer.files.get(nowhere) is None
            assert await checkpointer.files.by_path(nowhere) is None

    async def test_any_text_is_a_path(self, checkpointer: Any) -> None:
        async with checkpointer.transaction() as tx:
            for number, path in enumerate(PATHS):
                await tx.files.put(path, content_id=f"{number}")
        for number, path in enumerate(PATHS):
            file = await checkpointer.files.by_path(path)
            assert (file.content_id, file.path) == (f"{number}", path)
        assert await checkpointer.files.by_path("%") is None

    async def test_files_are_of_no_thread_but_of_a_transaction(self, checkpointer: Any) -> None:
        file = await checkpointer.files.put("p", content_id="a")
        assert await checkpointer.threads.list() == []
        with suppress(ZeroDivisionError):
            async with checkpointer.transaction() as tx:
                await tx.files.put("p", content_id="b")
                await tx.files.put("p", content_id="a", size=1)
                assert (await tx.files.by_path("p")).size == 1
                assert await tx.files.delete("a")
                assert (await tx.files.by_path("p")).content_id == "b"
                raise ZeroDivisionError
        assert await checkpointer.files.get("b") is None
        assert await checkpointer.files.by_path("p") == file
        await checkpointer.threads.create("thread")
        await checkpointer.threads.delete("thread")
        assert await checkpointer.files.get("a") == file

    async def test_bad_files_are_refused(self, checkpointer: Any) -> None:
        for both in ({}, {"content": b"", "content_id": "a"}):
            with pytest.raises(ValueError, match="content or content_id"):
                await checkpointer.files.put("p", **both)
        for content in ("text", 7, [1]):
            with pytest.raises(UnstorableValueError, match="content"):
                await checkpointer.files.put("p", content=content)
        bad_values: list[tuple[str, Any]] = [
            *((name, text) for name in ("path", "summary") for text in (7, b"bytes", None, "\ud800")),
            *((name, count) for name in ("size", "token_count") for count in (-1, 1.0, True, "1", 2**53)),
            *(("metadata", {"value": value}) for value, _ in UNSTORABLE_VALUES),
            *(("metadata", value) for value in (list[Any](), "text", 7)),
        ]
        for name, bad in bad_values:
            with pytest.raises(UnstorableValueError, match=name):
                await checkpointer.files.put(**{"path": "p", "content_id": "a"} | {name: bad})
        with pytest.raises(MessageTooLargeError):
            await checkpointer.files.put("p", content_id="a", summary="x" * 8 * 1024 * 1024)
        for bad in BAD_IDS:
            for call in (checkpointer.files.get, checkpointer.files.delete):
                with pytest.raises(InvalidIdError, match="content_id"):
                    await call(bad)
            if bad is not None:
                with pytest.raises(InvalidIdError, match="content_id"):
                    await checkpointer.files.put("p", content_id=bad)
        with pytest.raises(InvalidIdError, match="media_type"):
            await checkpointer.files.put("p", content_id="a", media_type=" text")
        assert await checkpointer.files.by_path("p") is None
        assert await checkpointer.files.get("a") is None
