"""A backend of one's own: threads as folders of files. It has `load`, `append` and `save_extra`, and that is enough.

Each write is one new file in the thread's folder, numbered 1, 2, 3, …: an entry with some messages, or with some keys
of extra. No file is ever changed. To load is to read the entries in order until a number is missing, so a reader always
sees the thread as it was after some write, and never half of one.

`test_file_backend.py` holds it to Threadkeep's conformance kit.
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from threadkeep import CheckpointCorruptionError, CheckpointData, Message, TextContent, UserMessage
from threadkeep.codec import Codec
from threadkeep.ids import check_id


class Entry(BaseModel):
    """One write, as a file holds it."""

    messages: list[Message] = []
    extra: dict[str, Any] = {}


class FileCheckpointer:
    """Keeps each thread in a folder of its own, below `folder`. Any number of processes may share it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        # Threadkeep's own encoder: what another backend would refuse is refused here too, with the same error.
        self._codec = Codec()

    async def load(self, thread_id: str) -> CheckpointData | None:
        """All messages in append order and the merged extra, or None."""
        return await asyncio.to_thread(_read, self._folder_of(thread_id))

    async def append(self, thread_id: str, messages: Sequence[Any]) -> None:
        """Add the messages, all or none."""
        folder = self._folder_of(thread_id)
        rows = self._codec.encode_messages(messages)
        if rows:
            payloads = ",".join(row.payload.decode() for row in rows)
            await asyncio.to_thread(_add, folder, f'{{"messages":[{payloads}]}}')

    async def save_extra(self, thread_id: str, extra: dict[str, Any]) -> None:
        """Merge these keys into extra."""
        folder = self._folder_of(thread_id)
        await asyncio.to_thread(_add, folder, f'{{"extra":{self._codec.encode_object(extra, "extra")}}}')

    def _folder_of(self, thread_id: str) -> Path:
        # An id may hold a slash, be longer than a file name, or differ from another only by case: its hash does not.
        return self._folder / sha256(check_id("thread_id", thread_id).encode()).hexdigest()


def _read(folder: Path) -> CheckpointData | None:
    data = CheckpointData()
    number = 1
    while (file := folder / f"{number}.json").exists():
        try:
            entry = Entry.model_validate_json(file.read_bytes())
        except ValidationError as error:
            raise CheckpointCorruptionError("entries", {"file": str(file)}, str(error)) from error
        data.messages += entry.messages
        data.extra |= entry.extra
        number += 1
    return data if number > 1 else None


def _add(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, prefix="unfinished-") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        number = 1 + sum(1 for _ in folder.glob("*.json"))
        while True:
            try:
                # The commit: the whole entry appears under its number, or another writer has just taken it.
                os.link(file.name, folder / f"{number}.json")
            except FileExistsError:
                number += 1
            else:
                break
    _sync(folder)


def _sync(folder: Path) -> None:
    """Make the new name survive a power cut, as the content does."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def show_files(folder: Path) -> None:
    """What is on the disk."""
    for file in sorted(folder.rglob("*.json")):
        print(file.name, file.read_text())


async def main() -> None:
    """Write through one object, read through another."""
    with tempfile.TemporaryDirectory() as folder:
        await FileCheckpointer(folder).append("trip", [UserMessage(content=[TextContent(text="Where to?")])])
        await FileCheckpointer(folder).save_extra("trip", {"budget": 300})
        thread = await FileCheckpointer(folder).load("trip")
        assert thread is not None
        print([message.content[0].text for message in thread.messages], thread.extra)
        show_files(Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
