"""The arithmetic of context windows, beside a model that keeps them as plain trees."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from threadkeep import windows
from threadkeep.errors import CheckpointCorruptionError, StaleContextError
from threadkeep.records import PlacedItem
from threadkeep.windows import Replaced, Summarized


@dataclass
class Kept:
    """What a store keeps of a thread, and what it does with the answers of `windows`."""

    log: list[int] = field(default_factory=list)
    compacted_seq: int = 0
    rows: dict[int, int | None] = field(default_factory=dict)
    summaries: dict[int, Summarized] = field(default_factory=dict)

    def items(self) -> list[PlacedItem]:
        by_themselves = {seq: None for seq in self.log if seq > self.compacted_seq}
        rows = {**self.rows, **by_themselves}
        return [PlacedItem(position, _name(position, rows[position]), rows[position]) for position in sorted(rows)]

    def swap(self, remove: list[str]) -> int:
        change = windows.compact("thread", self.compacted_seq, self.items(), remove)
        number = max(self.summaries, default=0) + 1
        self.summaries[number] = Summarized(change.position, change.replaces)
        for position in change.removed:
            del self.rows[position]
        assert not self.rows.keys() & {*change.stayed, change.position}
        self.rows |= dict.fromkeys(change.stayed)
        self.rows[change.position] = number
        self.compacted_seq = change.compacted_seq
        return number

    def fork(self, copied: list[int]) -> Kept:
        left = sorted({*self.log} - {*copied})
        forked = windows.fork(self.rows, self.summaries, copied, left)
        kept = {number: Summarized(*summary) for number, summary in forked.summaries.items()}
        return Kept([*range(1, len(copied) + 1)], forked.compacted_seq, forked.rows, kept)

    def expand(self, number: int) -> list[str]:
        """What the summary stands for, by position."""
        found: dict[int, str] = {}
        for entry in self.summaries[number].replaces:
            if isinstance(entry, int):
                found[self.summaries[entry].position] = _name(0, entry)
            else:
                found |= {seq: _name(seq, None) for seq in self._between(entry)}
        return [found[position] for position in sorted(found)]

    def expand_deep(self, number: int) -> list[int]:
        replaces = {number: summary.replaces for number, summary in self.summaries.items()}
        return [seq for entry in windows.messages_under(number, replaces) for seq in self._between(entry)]

    def _between(self, entry: list[int]) -> list[int]:
        return [seq for seq in self.log if entry[0] <= seq <= entry[1]]


def _name(seq: int, number: int | None) -> str:
    return f"message {seq}" if number is None else f"summary {number}"


@dataclass
class Node:
    """The model: a message, or a summary with all that it stands for."""

    name: str
    leaves: list[int]
    children: list[Node] = field(default_factory=list)

    def forked(self, copied: list[int]) -> list[Node]:
        """What stands in its place in a copy of these messages."""
        if not all(seq in copied for seq in self.leaves):
            return [node for child in self.children for node in child.forked(copied)]
        leaves = [copied.index(seq) + 1 for seq in self.leaves]
        if not self.children:
            return [message(*leaves)]
        children = [node for child in self.children for node in child.forked(copied)]
        return [Node(self.name, leaves, _in_order(children))]

    def summaries(self) -> list[Node]:
        below = [node for child in self.children for node in child.summaries()]
        return [self, *below] if self.children else below


def message(seq: int) -> Node:
    return Node(_name(seq, None), [seq])


def _in_order(nodes: list[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: node.leaves[0])


def check(kept: Kept, window: list[Node]) -> None:
    """The store and the model show the same, and nothing is lost in either."""
    items = kept.items()
    assert [(item.position, item.message_id) for item in items] == [(node.leaves[0], node.name) for node in window]
    summaries = [summary for node in window for summary in node.summaries()]
    assert {f"summary {number}" for number in kept.summaries} == {summary.name for summary in summaries}
    for summary in summaries:
        number = int(summary.name.split()[1])
        assert kept.summaries[number].position == summary.leaves[0]
        assert kept.expand(number) == [child.name for child in summary.children]
        assert kept.expand_deep(number) == summary.leaves
    shown = [
        seq for item in items for seq in ([item.position] if item.number is None else kept.expand_deep(item.number))
    ]
    assert sorted(shown) == kept.log
    # What comes by itself has no row.
    assert all(position <= kept.compacted_seq for position in kept.rows)


picks = st.sets(st.integers(0, 11), min_size=1, max_size=5)
steps = st.one_of(
    st.tuples(st.just("append"), st.sets(st.integers(1, 8), min_size=1, max_size=5)),
    st.tuples(st.just("swap"), picks),
    st.tuples(st.just("swap"), picks),
    st.tuples(st.just("swap a row"), st.sets(st.integers(0, 12), min_size=2, max_size=2)),
    st.tuples(st.just("fork leaving"), st.sets(st.integers(0, 40), max_size=6)),
)


@given(st.lists(steps, max_size=25))
@example([("swap", {0, 2}), ("swap", {0, 1})])
@example([("swap", {0, 2, 4}), ("swap", {1, 2})])
@example([("swap", {1}), ("swap", {0, 1, 2}), ("fork leaving", {3})])
@example([("append", {1, 2, 4}), ("swap", {4, 5}), ("swap", {0, 1}), ("append", {2}), ("fork leaving", {0})])
def test_nothing_is_lost_whatever_is_compacted_and_forked(series: list[tuple[str, set[int]]]) -> None:
    """Every message is in the window or under one summary in it, and each summary knows what it stands for."""
    kept, window = Kept(), list[Node]()
    for step, numbers in [("append", {1, 2, 3, 4, 5}), *series]:
        if step == "append":
            # An adopted log may have gaps.
            last = max(kept.log, default=0)
            kept.log += [last + number for number in sorted(numbers)]
            window += [message(seq) for seq in kept.log if seq > last]
        elif step == "fork leaving":
            copied = [seq for index, seq in enumerate(kept.log) if index not in numbers]
            kept = kept.fork(copied)
            window = _in_order([node for item in window for node in item.forked(copied)])
        elif window:
            places = {number % len(window) for number in numbers}
            if step == "swap a row":
                places = {*range(min(places), max(places) + 1)}
            children = [window[place] for place in sorted(places)]
            number = kept.swap([child.name for child in reversed(children)])
            summary = Node(_name(0, number), sorted(seq for child in children for seq in child.leaves), children)
            window[min(places)] = summary
            window = [node for place, node in enumerate(window) if place == min(places) or place not in places]
        check(kept, window)


def test_a_compaction_says_what_changes_in_a_store() -> None:
    kept = Kept(log=[1, 2, 3, 4, 5, 6])
    change = windows.compact("thread", 0, kept.items(), ["message 4", "message 2", "message 3"])
    assert change == windows.Compaction(2, [[2, 4]], [], [1], 4)
    kept.swap(["message 4", "message 2", "message 3"])
    # A message before, a summary, and one of two that came by themselves.
    change = windows.compact("thread", 4, kept.items(), ["message 1", "summary 1", "message 6"])
    assert change == windows.Compaction(1, [[1, 1], 1, [6, 6]], [1, 2], [5], 6)


def test_messages_in_a_row_make_one_entry_however_many() -> None:
    kept = Kept(log=[*range(1, 100_001)])
    number = kept.swap([f"message {seq}" for seq in range(1, 99_951)])
    assert kept.summaries[number].replaces == [[1, 99_950]]
    assert (kept.compacted_seq, kept.rows, len(kept.items())) == (99_950, {1: number}, 51)


def test_what_is_not_in_the_window_is_named() -> None:
    kept = Kept(log=[1, 2, 3])
    kept.swap(["message 1", "message 2"])
    before = kept.items()
    with pytest.raises(StaleContextError) as caught:
        kept.swap(["message 2", "summary 1", "message 3", "message 4"])
    assert (caught.value.thread_id, caught.value.message_ids) == ("thread", ["message 2", "message 4"])
    assert kept.items() == before


def test_a_summary_comes_along_exactly_when_all_its_messages_do() -> None:
    kept = Kept(log=[1, 2, 3, 4, 5, 6])
    first = kept.swap(["message 2", "message 4"])
    second = kept.swap([_name(0, first), "message 5"])
    for left in range(1, 7):
        copied = [seq for seq in kept.log if seq != left]
        comes_along = {number for number, leaves in {first: {2, 4}, second: {2, 4, 5}}.items() if left not in leaves}
        assert set(kept.fork(copied).summaries) == comes_along
    nothing = kept.fork([])
    assert (nothing.compacted_seq, nothing.rows, nothing.summaries) == (0, {}, {})


def test_a_long_chain_of_summaries_is_no_trouble() -> None:
    """An agent that compacts at every turn makes a summary of a summary of a summary."""
    depth = 3_000
    kept = Kept()
    number: int | None = None
    for seq in range(1, depth + 1):
        kept.log.append(seq)
        number = kept.swap([f"message {seq}", *([] if number is None else [_name(0, number)])])
    assert number == depth
    assert kept.expand(number) == [f"summary {depth - 1}", f"message {depth}"]
    replaces: dict[int, Replaced] = {number: summary.replaces for number, summary in kept.summaries.items()}
    assert windows.messages_under(depth, replaces) == [[seq, seq] for seq in kept.log]
    whole = kept.fork(kept.log)
    assert (whole.compacted_seq, whole.rows, len(whole.summaries)) == (depth, {1: depth}, depth)
    # Without the last message, the chain is one shorter; without the first, nothing of it is left.
    assert kept.fork(kept.log[:-1]).rows == {1: depth - 1}
    broken = kept.fork(kept.log[1:])
    assert (broken.compacted_seq, broken.rows, broken.summaries) == (0, {}, {})
    assert len(broken.items()) == depth - 1


def test_what_is_stored_of_a_summary_is_read_again() -> None:
    assert windows.decode("thread", 3, "[[1, 4], 2]") == [[1, 4], 2]
    with pytest.raises(CheckpointCorruptionError) as caught:
        windows.decode("thread", 3, "[[1, 4")
    assert caught.value.key == {"thread_id": "thread", "number": 3}
