"""Which contracts a backend is held to: those whose methods it has."""

from __future__ import annotations

from typing import Any

from threadkeep.testing.answers import AnswersContract
from threadkeep.testing.checkpoints import CheckpointsContract
from threadkeep.testing.concurrency import ConcurrencyContract
from threadkeep.testing.context import ContextContract
from threadkeep.testing.files import FilesContract
from threadkeep.testing.forks import ForkRecordContract, ForksContract
from threadkeep.testing.leases import LeasesContract
from threadkeep.testing.ledger import LedgerContract
from threadkeep.testing.messages import MessagesContract
from threadkeep.testing.minimal import MinimalContract
from threadkeep.testing.parts import PartsContract
from threadkeep.testing.pending import PendingContract
from threadkeep.testing.resuming import ResumeContract
from threadkeep.testing.runs import RunListContract, RunsContract
from threadkeep.testing.sessions import SessionsContract
from threadkeep.testing.threads import StatusContract, ThreadsContract
from threadkeep.testing.transactions import TransactionsContract
from threadkeep.testing.usage import UsageContract
from threadkeep.testing.values import ValuesContract

_RUNS = {"claim_run", "mark_run_complete", "snapshot"}
_PENDING = {
    "save_pending_request",
    "clear_pending_request_if_matches",
    "load_pending",
    "load_pending_request",
    "load_pending_run_id",
}
_ANSWERS = {"save_hitl_answer", "load_hitl_answer", "has_hitl_answer", "clear_hitl_answers"}
_WHOLE_PROTOCOL = {"fork", *_RUNS, *_PENDING, *_ANSWERS}

_CRASH_SAFE = {
    *_WHOLE_PROTOCOL,
    "threads",
    "runs",
    "transaction",
    "ledger",
    "checkpoints",
    "resume",
    "repair",
}
_IMMUTABLE_LOG = {*_CRASH_SAFE, "messages", "parts", "usage", "context"}

CAPABILITIES: list[tuple[type[Any], set[str]]] = [
    (MinimalContract, {"load", "append", "save_extra"}),
    (RunsContract, _RUNS),
    (PendingContract, _PENDING),
    (AnswersContract, _ANSWERS),
    (ForksContract, _WHOLE_PROTOCOL),
    (ValuesContract, _WHOLE_PROTOCOL),
    (RunListContract, {*_RUNS, "runs"}),
    (ThreadsContract, {*_WHOLE_PROTOCOL, "threads", "runs"}),
    (ForkRecordContract, {*_WHOLE_PROTOCOL, "threads", "runs"}),
    (TransactionsContract, {*_WHOLE_PROTOCOL, "threads", "runs", "transaction"}),
    (ConcurrencyContract, {*_WHOLE_PROTOCOL, "threads", "runs", "transaction"}),
    (StatusContract, {*_CRASH_SAFE}),
    (LedgerContract, {*_CRASH_SAFE}),
    (CheckpointsContract, {*_CRASH_SAFE}),
    (LeasesContract, {*_CRASH_SAFE}),
    (ResumeContract, {*_CRASH_SAFE}),
    (SessionsContract, {*_IMMUTABLE_LOG, "files"}),
    (MessagesContract, {*_IMMUTABLE_LOG}),
    (PartsContract, {*_IMMUTABLE_LOG}),
    (UsageContract, {*_IMMUTABLE_LOG}),
    (ContextContract, {*_IMMUTABLE_LOG}),
    (FilesContract, {"threads", "transaction", "files"}),
]


def contracts_of(backend: Any) -> list[type[Any]]:
    """The contracts of a backend, given as a class or as an object."""
    return [contract for contract, methods in CAPABILITIES if all(hasattr(backend, name) for name in methods)]


def contract_for(backend: Any) -> type[Any]:
    """One base class for tests of this backend, with every contract it can be held to."""
    contracts = contracts_of(backend)
    if MinimalContract not in contracts:
        raise TypeError(f"{backend!r} is no checkpointer: it needs load, append and save_extra")
    return type(f"ContractFor{getattr(backend, '__name__', 'Backend')}", tuple(contracts), {})
