"""The agent with a small window loses nothing, and says what the how-to page shows."""

import importlib.util
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from threadkeep import AssistantMessage, TextContent, ToolCall, ToolResultMessage, UserMessage

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "compacting_agent.py"
PAGE = (ROOT / "docs" / "how-to" / "compact-a-conversation.md").read_text()


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compacting_agent", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_agent_with_a_small_window_says_what_the_page_shows() -> None:
    shown = re.search(r"```text\n\$ python examples/compacting_agent\.py\n(.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    program = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=120)
    assert (program.returncode, program.stderr) == (0, "")
    assert program.stdout.strip() == shown[1].strip()
    assert max(map(len, program.stdout.splitlines())) <= 80


@pytest.mark.parametrize("function", ["async def compact(", "def oldest("])
def test_the_loop_on_the_page_is_that_of_the_agent(function: str) -> None:
    shown = re.search(rf"```python\n({re.escape(function)}.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] in EXAMPLE.read_text()


def test_no_tool_call_is_parted_from_its_result(example: ModuleType) -> None:
    said: list[Any] = [UserMessage(content=[TextContent(text="x" * 60)])]
    used: list[Any] = [
        AssistantMessage(content=[ToolCall(id="call", name="trains", arguments={})]),
        *(ToolResultMessage(tool_call_id="call", tool_name="trains", content=[TextContent(text="x" * 40)]),) * 2,
    ]
    for turns in product((said, used), repeat=6):
        window = [message for turn in turns for message in turn]
        old = example.oldest(window)
        kept = window[len(old) :]
        assert old == window[: len(old)]
        assert kept[-1] == window[-1]
        assert kept == window or kept[0].role != "tool_result"
        assert not old or old[-1].role != "assistant"
        # The call of the first kept result, and what came before it, may be too much for KEEP, and stay all the same.
        assert example.tokens(kept[3:]) <= example.KEEP
