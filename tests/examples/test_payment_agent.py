"""The agent that is killed pays everybody once, and says what the how-to page shows."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "survive-a-crash.md"


def test_the_agent_that_is_killed_says_what_the_page_shows() -> None:
    shown = re.search(r"```text\n\$ python examples/payment_agent\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    program = subprocess.run(
        [sys.executable, ROOT / "examples" / "payment_agent.py"], capture_output=True, text=True, timeout=120
    )
    assert (program.returncode, program.stderr) == (0, "")
    assert program.stdout.strip() == shown[1].strip()
    assert program.stdout.endswith("each payment was made exactly once\n")
