"""The error classes: their hierarchy, their ids, their text, and that they survive a trip to another process."""

import copy
import inspect
import pickle
import re
from typing import Any

import pytest

import threadkeep
from threadkeep import MemoryCheckpointer, errors
from threadkeep.errors import (
    CheckpointCorruptionError,
    CheckpointerError,
    CheckpointerLockTimeoutError,
    CompletionMarkerFailedError,
    CubepiSchemaError,
    CubepiSchemaMismatch,
    CubepiSchemaUninitialized,
    DuplicateIdError,
    ImmutableFieldError,
    InvalidIdError,
    LeaseHeldError,
    LeaseLostError,
    MessageNotFoundError,
    MessageTooLargeError,
    OutcomeUnknownError,
    PartNotFoundError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotClaimedError,
    RunNotCompletedError,
    StaleContextError,
    SummaryNotFoundError,
    ThreadAlreadyExistsError,
    ThreadDeletedError,
    ThreadNotFoundError,
    ToolCallInFlightError,
    ToolCallInterruptedError,
    ToolCallMismatchError,
    ToolCallNotFoundError,
    ToolCallSettledError,
    TransactionConflictError,
    UnstorableValueError,
)

THREAD = {"thread_id": "thread-1"}
RUN = {"thread_id": "thread-1", "run_id": "run-{2}"}
CALL = {"thread_id": "thread-1", "call_id": "call-{3}"}
MESSAGE = {"thread_id": "thread-1", "message_id": "message-{4}"}
TEXT = "what happened"

# Each class with the ids it carries, in the order it takes them; a list is a text it takes as it is.
CLASSES: list[tuple[type[Exception], dict[str, Any] | list[str]]] = [
    (ThreadNotFoundError, THREAD),
    (ThreadAlreadyExistsError, THREAD),
    (ThreadDeletedError, THREAD),
    (RunNotClaimedError, RUN),
    (RunNotCompletedError, RUN),
    (RunAlreadyClaimedError, RUN),
    (RunAlreadyCompletedError, RUN),
    (LeaseHeldError, RUN),
    (LeaseLostError, RUN),
    (ToolCallNotFoundError, CALL),
    (ToolCallInFlightError, CALL),
    (ToolCallInterruptedError, CALL),
    (ToolCallSettledError, {**CALL, "state": "completed"}),
    (ToolCallMismatchError, CALL),
    (MessageNotFoundError, MESSAGE),
    (SummaryNotFoundError, MESSAGE),
    (DuplicateIdError, MESSAGE),
    (PartNotFoundError, {**MESSAGE, "index": 3}),
    (ImmutableFieldError, {"name": "content"}),
    (StaleContextError, {"thread_id": "thread-1", "message_ids": ["message-{4}", "#5"]}),
    (CompletionMarkerFailedError, {**RUN, "cause": OSError("the disk is full")}),
    (CheckpointCorruptionError, {"table": "cubepi_messages", "key": {"thread_id": "t", "seq": 7}, "reason": "no JSON"}),
    (InvalidIdError, {"name": "thread_id", "value": " edge", "reason": "it begins or ends with white space"}),
    (UnstorableValueError, {"path": "extra.a[1]", "reason": "is a set"}),
    (MessageTooLargeError, {"what": "messages[3]", "size": 8_000_000, "limit": 7_340_032}),
    (CubepiSchemaMismatch, {"expected": 1005, "actual": 1004, "hint": "run the upgrade"}),
    (CheckpointerError, [TEXT]),
    (CheckpointerLockTimeoutError, [TEXT]),
    (TransactionConflictError, [TEXT]),
    (OutcomeUnknownError, [TEXT]),
    (CubepiSchemaError, [TEXT]),
    (CubepiSchemaUninitialized, [TEXT]),
]
OF_AN_OPERATION: set[type[Exception]] = {
    CheckpointerError,
    CheckpointerLockTimeoutError,
    CheckpointCorruptionError,
    CompletionMarkerFailedError,
    DuplicateIdError,
    ImmutableFieldError,
    MessageNotFoundError,
    PartNotFoundError,
    StaleContextError,
    SummaryNotFoundError,
    ThreadDeletedError,
    InvalidIdError,
    LeaseHeldError,
    LeaseLostError,
    MessageTooLargeError,
    OutcomeUnknownError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotClaimedError,
    RunNotCompletedError,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
    ToolCallInFlightError,
    ToolCallInterruptedError,
    ToolCallMismatchError,
    ToolCallNotFoundError,
    ToolCallSettledError,
    TransactionConflictError,
    UnstorableValueError,
}
OF_THE_SCHEMA: set[type[Exception]] = {CubepiSchemaError, CubepiSchemaMismatch, CubepiSchemaUninitialized}

each_class = pytest.mark.parametrize(("kind", "holds"), CLASSES, ids=lambda value: getattr(value, "__name__", ""))


def made(kind: type[Exception], holds: dict[str, Any] | list[str]) -> Exception:
    return kind(*holds) if isinstance(holds, list) else kind(**holds)


def test_every_public_error_is_tried_here_and_exported() -> None:
    public = {
        item
        for name, item in inspect.getmembers(errors, inspect.isclass)
        if item.__module__ == errors.__name__ and not name.startswith("_")
    }
    assert public == {kind for kind, _ in CLASSES} == OF_AN_OPERATION | OF_THE_SCHEMA
    for kind in public:
        assert getattr(threadkeep, kind.__name__) is kind


def test_the_hierarchy_is_the_contracts() -> None:
    for kind in OF_AN_OPERATION:
        assert issubclass(kind, CheckpointerError)
        assert not issubclass(kind, CubepiSchemaError)
    for kind in OF_THE_SCHEMA:
        assert issubclass(kind, CubepiSchemaError)
        assert not issubclass(kind, CheckpointerError)
    value_errors = [kind.__name__ for kind, _ in CLASSES if issubclass(kind, ValueError)]
    assert value_errors == ["InvalidIdError", "UnstorableValueError"]


@each_class
def test_ids_are_attributes_given_by_position_or_by_name(kind: type[Exception], holds: Any) -> None:
    if isinstance(holds, list):
        assert str(kind(*holds)) == TEXT
        return
    for error in (kind(**holds), kind(*holds.values())):
        assert {name: getattr(error, name) for name in holds} == holds
        assert error.args == tuple(holds.values())


@each_class
def test_the_text_names_every_id(kind: type[Exception], holds: Any) -> None:
    text = str(made(kind, holds))
    assert "\n" not in text
    for value in holds if isinstance(holds, list) else holds.values():
        shown = f"{value:,}" if kind is MessageTooLargeError and isinstance(value, int) else str(value)
        assert shown in text


def test_what_was_not_found_says_where_to_look() -> None:
    """With a method that there is."""
    cp = MemoryCheckpointer()
    not_found = [made(kind, holds) for kind, holds in CLASSES if kind.__name__.endswith("NotFoundError")]
    assert len(not_found) == 5
    for error in not_found:
        if not isinstance(error, ToolCallNotFoundError):  # which says to issue it first
            (namespace, method) = re.findall(r": (\w+)\.(\w+)\(\)", str(error))[0]
            assert callable(getattr(getattr(cp, namespace), method))


@each_class
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickling_keeps_everything(kind: type[Exception], holds: Any, protocol: int) -> None:
    error = made(kind, holds)
    assert_equal(pickle.loads(pickle.dumps(error, protocol)), error)  # noqa: S301 - we have made it ourselves


@each_class
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copying_keeps_everything(kind: type[Exception], holds: Any, copied: Any) -> None:
    error = made(kind, holds)
    assert_equal(copied(error), error)


def assert_equal(again: Any, error: Any) -> None:
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert {name: repr(value) for name, value in vars(again).items()} == {
        name: repr(value) for name, value in vars(error).items()
    }


@pytest.mark.parametrize(
    ("ids", "named"),
    [((), {}), (("a",), {}), (("a", "b", "c"), {}), (("a",), {"thread_id": "b"}), ((), {"thread_id": "a", "run": "b"})],
)
def test_too_few_too_many_or_wrong_ids_are_refused(ids: tuple[str, ...], named: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="RunNotClaimedError takes thread_id, run_id"):
        RunNotClaimedError(*ids, **named)


def test_a_corrupt_row_can_be_found_by_its_error() -> None:
    error = CheckpointCorruptionError("cubepi_messages", {"thread_id": "t", "seq": 7}, "no JSON")
    assert error.thread_id == "t"
    assert error.row_ref == "cubepi_messages thread_id=t seq=7"
    assert CheckpointCorruptionError("cubepi_schema_version", {}, "?").thread_id is None


def test_a_failed_completion_shows_what_made_it_fail() -> None:
    cause = OSError("the disk is full")
    error = CompletionMarkerFailedError("thread", "run", cause)
    assert error.__cause__ is error.cause is cause


def test_who_expects_a_run_to_be_claimed_also_expects_it_to_be_leased() -> None:
    assert issubclass(LeaseHeldError, RunAlreadyClaimedError)


def test_schema_errors_say_what_to_do_even_without_being_told() -> None:
    assert "threadkeep upgrade" in str(CubepiSchemaUninitialized())
    assert str(CubepiSchemaMismatch(1005, 3)) == "the database schema is version 3, this library needs 1005"
    assert CubepiSchemaMismatch(expected=1005, actual=3).hint == ""


def test_a_long_id_is_not_shown_whole() -> None:
    assert len(str(InvalidIdError("thread_id", "x" * 10_000, "it is too long"))) < 200
