from __future__ import annotations

import importlib
import importlib.util
import signal
from collections.abc import Iterator

import pytest
import torch

# A runner that was started in the background ignores Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing on a busy machine. Machines with a GPU may lack hypothesis.
if importlib.util.find_spec("hypothesis"):
    hypothesis = importlib.import_module("hypothesis")
    lenient = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
    hypothesis.settings.register_profile("repeatable", derandomize=True, **lenient)
    hypothesis.settings.register_profile("search", print_blob=True, **lenient)  # `make search`: new examples each time
    hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: pytest --slow"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Without torch's own threads: what a test computes is too small to share, where processes compete they cost more
    than they give, and forked children have none."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
