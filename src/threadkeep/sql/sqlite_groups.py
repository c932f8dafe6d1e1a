"""Writes of several callers in one transaction of SQLite: they share its flush to the disk, which costs most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from threadkeep.sql.transactions import (
    AbandonedError,
    TransactionLostError,
    Transactions,
    Work,
    begin_or_stale,
    in_savepoint,
    in_transaction,
    roll_back_quietly,
)


class Attempt(NamedTuple):
    """A write, and whether its caller still wants it."""

    work: Work[Any]
    may_commit: Callable[[], bool]


class Outcome(NamedTuple):
    """What became of it."""

    result: Any = None
    error: BaseException | None = None


def write_together(conn: sa.Connection, transactions: Transactions, attempts: Sequence[Attempt]) -> list[Outcome]:
    """Make these writes: each all or nothing, whatever becomes of the others."""
    if len(attempts) > 1:
        begin_or_stale(conn, transactions)
        try:
            outcomes = [_part(conn, transactions, attempt) for attempt in attempts]
            transactions.commit(conn)
            return outcomes
        except (SQLAlchemyError, TransactionLostError):
            # None of them has happened, and alone each gets the answer that is its own.
            roll_back_quietly(conn, transactions)
    return [_alone(conn, transactions, attempt) for attempt in attempts]


def _part(conn: sa.Connection, transactions: Transactions, attempt: Attempt) -> Outcome:
    def unless_abandoned(conn: sa.Connection) -> Any:
        result = attempt.work(conn)
        if not attempt.may_commit():
            raise AbandonedError
        return result

    try:
        return Outcome(in_savepoint(conn, transactions.hooks, unless_abandoned))
    except TransactionLostError:
        raise
    except Exception as error:
        return Outcome(error=error)


def _alone(conn: sa.Connection, transactions: Transactions, attempt: Attempt) -> Outcome:
    try:
        return Outcome(in_transaction(conn, transactions, attempt.work, attempt.may_commit))
    except Exception as error:
        return Outcome(error=error)
