"""The ids that messages are given, and the names of those that have none."""

import threading
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep import message_ids
from threadkeep.errors import InvalidIdError
from threadkeep.message_ids import (
    check_given_id,
    made_id,
    message_id_in,
    message_ids_in,
    new_message_id,
    new_stem,
    of_seq,
    seq_in,
    told_seq,
)
from threadkeep.testing.samples import BAD_IDS, GOOD_IDS


def milliseconds(message_id: str) -> int:
    return UUID(message_id).int >> 80


def test_ids_are_new_and_sort_in_the_order_of_their_making() -> None:
    made = [new_message_id() for _ in range(20_000)]
    assert made == sorted(set(made))


def test_an_id_is_a_uuid_that_tells_its_time() -> None:
    before = time.time_ns() // 1_000_000
    made = UUID(new_message_id())
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert before <= milliseconds(str(made)) <= time.time_ns() // 1_000_000 + 1
    assert check_given_id("message_id", str(made)) == str(made)


def test_threads_of_a_process_make_different_ids_in_order() -> None:
    made: list[list[str]] = [[] for _ in range(4)]
    start = threading.Barrier(4)

    def make(ids: list[str]) -> None:
        start.wait()
        ids += [new_message_id() for _ in range(2_000)]

    workers = [threading.Thread(target=make, args=(ids,)) for ids in made]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(ids == sorted(ids) for ids in made)
    assert len({message_id for ids in made for message_id in ids}) == 8_000


def test_a_clock_that_stands_still_or_goes_back_changes_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "_last", 0)
    now = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1_000_000_000)
    clock = [now, now, now, now - 3_600 * 10**9, now + 999_999, now + 1_000_000, now + 10**9]
    made = []
    for moment in clock:
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: moment)
        made.append(new_message_id())
    assert made == sorted(set(made))
    assert milliseconds(made[0]) == milliseconds(made[3]) == now // 1_000_000
    assert milliseconds(made[-1]) == now // 1_000_000 + 1_000


def test_the_clock_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read twice, it would tell the milliseconds of one moment and their fractions of the next."""
    monkeypatch.setattr(message_ids, "_last", 0)
    moments = iter([1_999_999_999_999_999_999, 2_000_000_000_000_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(moments))
    made = UUID(new_message_id()).int
    assert (made >> 80, made >> 64 & 0xFFF) == (1_999_999_999_999, 0xFFF)


@given(st.sets(st.integers(1, 16**10 - 1)))
def test_a_made_id_tells_the_seq_of_its_message(seqs: set[int]) -> None:
    stem = new_stem()
    made = [made_id(stem, seq) for seq in sorted(seqs)]
    assert [told_seq(message_id) for message_id in made] == sorted(seqs)
    assert made == sorted(made)
    assert {UUID(message_id).version for message_id in made} <= {7}
    assert all(made_id(new_stem(), 1) > message_id for message_id in made)
    assert [seq_in(message_id) for message_id in made] == [None] * len(made)


def test_an_id_that_was_not_made_for_a_message_tells_none() -> None:
    made = made_id(new_stem(), 7)
    of_version_4 = f"{made[:14]}4{made[15:]}"
    for name in (*GOOD_IDS, of_seq(7), made.upper(), made + "0", made[1:], f" {made}", of_version_4, ""):
        assert told_seq(name) == 0, name


@given(st.integers(1, 10**18 - 1))
def test_a_seq_is_a_name_of_its_own(seq: int) -> None:
    assert seq_in(of_seq(seq)) == seq
    with pytest.raises(InvalidIdError) as caught:
        check_given_id("message_id", of_seq(seq))
    assert (caught.value.name, caught.value.value) == ("message_id", f"#{seq}")


@given(st.text())
def test_any_other_text_is_none(text: str) -> None:
    seq = seq_in(text)
    assert seq is None or of_seq(seq) == text


def test_what_only_looks_like_one_may_be_given() -> None:
    for name in ("#", "#0", "#01", "#-1", "#1.0", "1", "# 1", "##1", "#1a", "#\u0661", *GOOD_IDS):
        assert seq_in(name) is None
        assert check_given_id("message_id", name) == name
    for bad in BAD_IDS:
        with pytest.raises(InvalidIdError):
            check_given_id("message_id", bad)


def test_messages_are_named_by_their_id_or_by_what_has_it() -> None:
    record = SimpleNamespace(message_id="a")
    assert message_id_in("summary", "a") == message_id_in("summary", record) == "a"
    assert message_id_in("summary", {"message_id": "a"}) == "a"
    assert message_ids_in("remove", iter(["b", record, "b", "a", "c"])) == ["b", "a", "c"]
    assert message_ids_in("remove", []) == []
    for alone in ("abc", {"message_id": "a"}, record, None, 7):
        with pytest.raises(InvalidIdError, match="where a list"):
            message_ids_in("remove", alone)
    for wrong in (SimpleNamespace(message_id=None), SimpleNamespace(), {"message_id": None}, {}, *BAD_IDS):
        with pytest.raises(InvalidIdError) as caught:
            message_ids_in("remove", ["a", wrong])
        assert caught.value.name == "remove[1]"
