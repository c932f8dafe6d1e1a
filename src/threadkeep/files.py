"""`cp.files`: references to files that agents have met, by their content and by their path."""

from __future__ import annotations

import hashlib
from typing import Any

from threadkeep.codec import Codec
from threadkeep.errors import UnstorableValueError
from threadkeep.ids import check_id
from threadkeep.parts import checked_count
from threadkeep.records import FileReference, StoredFile
from threadkeep.rules import utc_now
from threadkeep.store import Store


class Files:
    """The files of a checkpointer, or of a transaction. They belong to no thread: one file is met in many."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec

    async def put(
        self,
        path: str,
        *,
        content: bytes | None = None,
        content_id: str | None = None,
        media_type: str = "",
        size: int | None = None,
        token_count: int | None = None,
        summary: str = "",
        metadata: dict[str, Any] | None = None,
    ) -> FileReference:
        """Note that this content was at this path.

        Give the `content`, of which only a hash and the size are kept, or a `content_id` of your own. The same
        content at the same path again replaces what was noted, and is the latest then.
        """
        if (content is None) == (content_id is None):
            raise ValueError("give content or content_id, and not both")
        if content is not None:
            if not isinstance(content, bytes | bytearray | memoryview):
                raise UnstorableValueError("content", f"is a {type(content).__name__}, not bytes")
            content_id = hashlib.sha256(content).hexdigest()
            size = len(bytes(content)) if size is None else size
        stored = StoredFile(
            content_id=check_id("content_id", content_id),
            path=self._text("path", path),
            media_type=check_id("media_type", media_type) if media_type else "",
            size=None if size is None else checked_count("size", size),
            token_count=None if token_count is None else checked_count("token_count", token_count),
            summary=self._text("summary", summary),
            metadata=self._codec.encode_object({} if metadata is None else metadata, "metadata"),
            stored_at=utc_now(),
        )
        await self._store.put_file(stored)
        return self._reference(stored)

    async def get(self, content_id: str) -> FileReference | None:
        """What was last noted of this content, or None."""
        stored = await self._store.file_by_content(check_id("content_id", content_id))
        return None if stored is None else self._reference(stored)

    async def by_path(self, path: str) -> FileReference | None:
        """What was last noted at this path, or None."""
        stored = await self._store.file_by_path(self._text("path", path))
        return None if stored is None else self._reference(stored)

    async def delete(self, content_id: str) -> bool:
        """Forget this content, at whatever paths; say whether there was anything."""
        return await self._store.delete_file(check_id("content_id", content_id))

    def _text(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise UnstorableValueError(name, f"is a {type(value).__name__}, not a str")
        return self._codec.encode_value(value, name)

    def _reference(self, stored: StoredFile) -> FileReference:
        key = {"content_id": stored.content_id}
        path, summary, metadata = (
            self._codec.decode_value(text, "cubepi_files", key)
            for text in (stored.path, stored.summary, stored.metadata)
        )
        return FileReference(
            content_id=stored.content_id,
            path=path,
            media_type=stored.media_type,
            size=stored.size,
            token_count=stored.token_count,
            summary=summary,
            metadata=metadata,
            stored_at=stored.stored_at,
        )
