"""What the benchmark asks of a database, whichever it is."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

OLD_WORKER = "old worker"
"""The thread that the probes write to."""


@dataclass(frozen=True)
class Seen:
    """What can be seen of the upgrade's own session at one moment."""

    locks: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of an object and a lock that is held on it."""
    figures: dict[str, int] = field(default_factory=dict)
    """Figures of which the highest will be kept, by their names."""


class V3Database(ABC):
    """A database as cubepi 0.7.0 made it. Whoever opens it closes it."""

    strength: ClassVar[tuple[str, ...]]
    """The locks that there are, the weakest first."""
    kept: ClassVar[str]
    """What stays the same as long as a table is not rewritten."""
    blind: str = ""
    """Why no locks can be seen, if so."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    async def open(self) -> None:
        """Open the connections that watch."""

    @abstractmethod
    async def close(self) -> None:
        """Close them."""

    @abstractmethod
    async def version(self) -> str:
        """The server's own."""

    @abstractmethod
    async def create(self) -> None:
        """Make cubepi's tables."""

    @abstractmethod
    async def fill(self, messages: int, advance: Callable[[int], None]) -> None:
        """Fill them, telling how many messages were added; leave them as in a database that has long been in use."""

    @abstractmethod
    async def read(self, thread_id: str) -> int:
        """Read a thread as cubepi does. Returns how many messages it has."""

    @abstractmethod
    async def write(self) -> None:
        """Append a message to the thread of OLD_WORKER as cubepi does."""

    @abstractmethod
    async def look(self) -> Seen:
        """Look at the upgrade's session."""

    async def settle(self) -> None:  # noqa: B027 - a server has nothing to do
        """Do what the database would do by itself once the upgrade has closed it."""

    @abstractmethod
    async def identities(self) -> dict[str, int]:
        """By the names of tables, partitions and indexes: what a rewrite would change."""

    @abstractmethod
    async def size(self) -> int:
        """Bytes on disk."""

    @abstractmethod
    async def counted(self) -> tuple[int, int]:
        """After the upgrade: how many messages there are, and the sum of the threads' counters."""
