"""`threadkeep demo`: what it tells is true, what it recommends works, and it leaves nothing behind."""

import shlex
from pathlib import Path

import pytest

from cli.program import PROGRAM, well
from programs import Outcome, start
from threadkeep import SQLiteCheckpointer, ToolCall

STORY = [
    "cp.claim_run(",
    "cp.append(",
    "cp.save_pending_request(",
    "Interrupted!",
    "is closed and run-1 is still open",
    "cp.load_pending(",
    "cp.transaction()",
    "tx.clear_pending_request_if_matches(",
    "tx.save_hitl_answer(",
    "cp.mark_run_complete(",
    'cp.claim_run("refund", "run-2")',
    "cp.fork(",
    "What the database holds now",
    "What to try next",
]


def demo(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> Outcome:
    """In a new interpreter: the commands that the demo recommends begin as it was started itself."""
    return well(start([*PROGRAM, "demo", *words], cwd, env))


def commands_in(outcome: Outcome) -> list[list[str]]:
    """The commands at the end of the demo, as a shell would read them."""
    start = "  " + shlex.join(PROGRAM)
    return [shlex.split(line) for line in outcome.lines if line.startswith(start)]


async def test_the_demo_tells_its_story_in_order_and_the_file_holds_it(tmp_path: Path) -> None:
    told = demo("--keep", "kept.db", cwd=tmp_path).out

    places = [told.find(words) for words in STORY]
    assert -1 not in places, STORY[places.index(-1)]
    assert places == sorted(places)
    async with SQLiteCheckpointer(tmp_path / "kept.db") as cp:
        assert [record.thread_id for record in await cp.threads.list()] == ["voucher", "refund"]
        fork = await cp.threads.get("voucher")
        assert fork is not None
        assert (fork.parent_thread_id, fork.forked_at_seq) == ("refund", 6)
        runs = await cp.runs.list("refund")
        assert [(run.run_id, run.completion_seq) for run in runs] == [("run-1", 1), ("run-2", 2)]
        source, copy = await cp.load("refund"), await cp.load("voucher")
        assert source is not None
        assert copy is not None
        assert len(source.messages) == len(copy.messages) == 8
        assert copy.messages[:6] == source.messages[:6]
        assert copy.messages[6:] != source.messages[6:]
        assert any(isinstance(part, ToolCall) for part in source.messages[1].content)
        assert await cp.load_pending("refund") is None
        assert await cp.has_hitl_answer("refund", "q-1", run_id="run-1")


def test_the_demo_shows_a_tree_of_threads_and_a_table_of_rows() -> None:
    lines = demo().lines

    tree = lines[lines.index("demo.db") :]
    assert tree[1:5] == [
        "└── refund",
        "    ├── run-1  completed, completion_seq 1",
        "    │   ├── 1 user        The lamp of order 1042 arrived broken. May I have my money back?",
        "    │   ├── 2 assistant   → look_up_order(order=1042)",
    ]
    assert "    └── voucher  a fork: copied up to seq 6" in tree
    rows = [line.split() for line in lines if line.startswith("cubepi_")]
    assert all(len(row) > 2 for row in rows)  # each says what it is
    counts = {row[0]: row[1] for row in rows}
    assert counts == {
        "cubepi_threads": "2",
        "cubepi_messages": "16",
        "cubepi_message_places": "0",
        "cubepi_runs": "4",
        "cubepi_pending": "0",
        "cubepi_hitl_answers": "1",
        "cubepi_tool_calls": "0",
        "cubepi_checkpoints": "0",
        "cubepi_leases": "0",
        "cubepi_thread_labels": "0",
        "cubepi_search_texts": "0",
        "cubepi_parts": "0",
        "cubepi_usage": "0",
        "cubepi_summaries": "0",
        "cubepi_context": "0",
        "cubepi_files": "0",
        "cubepi_schema_version": "1",
    }


def test_the_commands_it_ends_with_work_on_the_kept_file(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    commands = commands_in(demo("--keep", "a folder/kept.db", cwd=tmp_path))

    assert [words[len(PROGRAM)] for words in commands] == ["threads", "show", "fork", "check"]
    for words in commands:
        well(start(words, cwd=tmp_path))


def test_without_keep_it_leaves_nothing_and_says_how_to_keep_it(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "here").mkdir()
    outcome = demo(cwd=tmp_path / "here", env={"TMPDIR": str(tmp_path / "temporary")})

    assert str(tmp_path / "temporary") in outcome.out
    assert list((tmp_path / "temporary").iterdir()) == list((tmp_path / "here").iterdir()) == []
    first, second, *_ = commands_in(outcome)
    assert first[len(PROGRAM) :] == ["demo", "--keep", "demo.db"]
    for words in (first, second):
        well(start(words, cwd=tmp_path / "here"))


@pytest.mark.parametrize(("columns", "width"), [("80", 80), ("120", 100), (None, 100)])
def test_no_line_is_wider_than_the_terminal_or_hard_to_read(columns: str | None, width: int) -> None:
    outcome = demo(env={"COLUMNS": columns} if columns else {})

    recommended = outcome.out.index("What to try next")  # commands are there to be copied: they are never folded
    assert max(len(line.rstrip()) for line in outcome.out[:recommended].splitlines()) <= width
