"""The README tells the truth: its example runs, its links lead somewhere, and its table names tests that there are."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import threadkeep
from threadkeep import MemoryCheckpointer, TextContent, UserMessage
from threadkeep.testing import (
    HostMessagesContract,
    LimitsContract,
    LockTimeoutContract,
    SearchContract,
    TypesContract,
    contract_for,
)

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LINKS = re.findall(r"\[([^\]]+)\]\(([^)#:]+)\)", README)
KIT: list[type[Any]] = [
    contract_for(MemoryCheckpointer()),
    TypesContract,
    LimitsContract,
    LockTimeoutContract,
    SearchContract,
    HostMessagesContract,
]
COLUMNS = {"memory": 2, "sqlite": 3, "postgresql": 4, "mysql": 5, "mariadb": 6}
"""Where each backend's column is, by the name that tests have for it."""


def rows() -> list[list[str]]:
    """The cells of each row of the table of guarantees; the first is empty."""
    cells = [line.split("|") for line in README.splitlines() if line.startswith("| ") and "●" in line]
    return [[cell.strip() for cell in row] for row in cells]


def home_of(file: str) -> str:
    """Where a test is collected. Those of the kit are, where our own backends are held to it."""
    return file if file.startswith("tests/") else "tests/contract/test_contract.py"


@cache
def collected() -> list[str]:
    """The ids of all tests in the folders that the table speaks of."""
    folders = sorted({str(Path(home_of(file)).parent) for text, file in LINKS if text.startswith("test_")})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    found = subprocess.run([*command, *folders], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout.splitlines()


def test_every_row_of_the_table_names_a_test() -> None:
    assert len(rows()) > 20
    for row in rows():
        assert re.search(r"\[test_\w+\]\(", row[7]), row[1]
        assert all(row[column] in ("●", "\N{EN DASH}") for column in COLUMNS.values()), row[1]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[1])
def test_the_tests_of_a_row_are_there_and_run_on_its_backends(row: list[str]) -> None:
    tests = re.findall(r"\[(test_\w+)\]\(([^)]+)\)", row[7])
    for name, file in tests:
        assert re.search(rf"def {name}\(", (ROOT / file).read_text()), f"{file} has no {name}"
        if file.startswith("src/"):
            module = file.removeprefix("src/").removesuffix(".py").replace("/", ".")
            # The test of another contract may have the same name and take its place.
            assert module in {getattr(kit, name).__module__ for kit in KIT if hasattr(kit, name)}, f"{name} never runs"
    for backend, column in COLUMNS.items():
        if row[column] == "●":
            missing = [name for name, file in tests if not runs_on(backend, name, file)]
            # One that names a backend speaks for that one alone, and then another must speak for this one.
            assert len(missing) < len(tests), f"nothing runs on {backend}"
            assert all(name.startswith("test_on_") for name in missing), f"{missing} do not run on {backend}"


def runs_on(backend: str, name: str, file: str) -> bool:
    """Whether the test is collected for this backend: as a parameter, or by its own name."""
    ids = [line for line in collected() if line.startswith(f"{home_of(file)}::") and f"::{name}" in line]
    # Not what follows "in-": the parameter sqlite-in-memory is not memory.
    return any(re.search(rf"::test_on_{backend}_|(\[|[^n]-){backend}(-|\])", test_id) for test_id in ids)


@pytest.mark.parametrize(("text", "target"), LINKS)
def test_links_lead_somewhere(text: str, target: str) -> None:
    assert (ROOT / target).exists()


def test_the_example_is_a_file_and_remembers(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert example is not None
    assert example[1] == (ROOT / "examples" / "quickstart.py").read_text()
    said = "user: Where to?\nassistant: Porto.\n"
    for runs in (1, 2):
        run = subprocess.run(
            [sys.executable, "-c", example[1]], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        assert run.stdout == said * runs


async def test_the_compaction_does_what_it_says() -> None:
    block = re.search(r"```python\n(window = .*?)```", README, re.DOTALL)
    assert block is not None
    lines = ["async def compaction(cp, summarize):", *block[1].splitlines()]
    names: dict[str, Any] = dict(vars(threadkeep))
    exec("\n    ".join(lines), names)  # noqa: S102 - it is the README's own
    said = [UserMessage(content=[TextContent(text=str(n))]) for n in range(30)]

    async def summarize(old: list[Any]) -> str:
        return f"{len(old)} messages"

    async def too_late(old: list[Any]) -> str:
        await names["compaction"](cp, summarize)
        return "never seen"

    async with MemoryCheckpointer() as cp:
        await cp.append("trip", said)
        await names["compaction"](cp, too_late)
        window = await cp.context.load("trip")
        assert window[0].content[0].text == "20 messages"
        assert window[1:] == said[20:]
        data = await cp.load("trip")
        assert data is not None
        assert data.messages == said


def test_the_commands_for_a_fresh_clone_are_whole_lines() -> None:
    start = "python3 -m venv .venv && .venv/bin/pip install -e"
    assert f"{start} '.[cli]' && .venv/bin/threadkeep demo" in README.splitlines()
    assert f"{start} '.[dev]' && .venv/bin/pytest" in README.splitlines()
