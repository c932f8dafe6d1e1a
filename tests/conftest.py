"""What all tests share. Where their servers come from is told in `servers.py`."""

import os

from hypothesis import settings

import servers

# No deadline: how long an example takes is the server's affair. HYPOTHESIS_PROFILE chooses.
settings.register_profile("dev", deadline=None, max_examples=50)
# The same examples on every run, and the line that replays a failure.
settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True, print_blob=True)
settings.register_profile("stress", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))


def pytest_unconfigure() -> None:
    servers.stop()
