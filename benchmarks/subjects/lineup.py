"""Who takes part in which scenario. A peer is imported only when it is asked for: it may not be installed."""

from importlib import import_module
from typing import NamedTuple

from subjects.subject import Subject

OURS = "Threadkeep"
FLOOR = "floor"
PEERS = ("cubepi", "cubepi (WAL)", "OpenAI SDK", "LangGraph")
PACKAGES = {
    OURS: "threadkeep",
    "cubepi": "cubepi",
    "OpenAI SDK": "openai-agents",
    "LangGraph": "langgraph-checkpoint",
}
"""What they are installed as."""

_OF_TYPED = frozenset({"append", "append x32", "turn", "turn x32", "load", "fork", "bulk"})
_OF_DICTS = frozenset({"load dict", "bulk dict"})


class _Entry(NamedTuple):
    name: str
    module: str
    of_class: str
    scenarios: frozenset[str]
    kinds: frozenset[str] | None = None


_MYSQL = frozenset({"mysql", "mariadb"})
_ENTRIES = (
    _Entry(OURS, "with_threadkeep", "WithThreadkeep", _OF_TYPED),
    _Entry(OURS, "with_threadkeep", "WithThreadkeepOfDicts", _OF_DICTS),
    _Entry("cubepi", "with_cubepi", "WithCubepi", _OF_TYPED),
    _Entry("cubepi (WAL)", "with_cubepi", "WithCubepiInWAL", _OF_TYPED, frozenset({"sqlite"})),
    _Entry(
        "OpenAI SDK",
        "with_agents_sdk",
        "WithAgentsSDK",
        frozenset({"append", "append x32", "load dict", "bulk dict"}),
    ),
    _Entry("LangGraph", "with_langgraph", "WithLangGraph", frozenset({"append", "append x32", "load"})),
    _Entry(FLOOR, "bare_sqlite", "BareSQLite", _OF_TYPED, frozenset({"sqlite"})),
    _Entry(FLOOR, "bare_sqlite", "BareSQLiteOfDicts", _OF_DICTS, frozenset({"sqlite"})),
    _Entry(FLOOR, "bare_postgresql", "BarePostgreSQL", _OF_TYPED, frozenset({"postgresql"})),
    _Entry(FLOOR, "bare_postgresql", "BarePostgreSQLOfDicts", _OF_DICTS, frozenset({"postgresql"})),
    _Entry(FLOOR, "bare_mysql", "BareMySQL", _OF_TYPED, _MYSQL),
    _Entry(FLOOR, "bare_mysql", "BareMySQLOfDicts", _OF_DICTS, _MYSQL),
)


def subject_for(name: str, kind: str, scenario: str) -> type[Subject] | None:
    """The class that takes part under this name, or None if it has no part in the scenario. Raises ImportError."""
    for entry in _ENTRIES:
        fits = entry.name == name and scenario in entry.scenarios and (entry.kinds is None or kind in entry.kinds)
        if fits:
            found: type[Subject] = getattr(import_module(f"subjects.{entry.module}"), entry.of_class)
            return found
    return None
