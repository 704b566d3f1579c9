import numpy as np
import pytest
from aegis.runtime import graphed_step
from training_step import PlayedGraphs


@pytest.fixture
def graphs(monkeypatch):
    played = PlayedGraphs()
    monkeypatch.setattr(graphed_step, "_graphs_of", lambda device: played)
    return played


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    np.random.default_rng(0).integers(0, 50, 16 * 90 + 1, dtype=np.uint16).tofile(path)
    return path


@pytest.fixture
def any_optimizer(monkeypatch):
    monkeypatch.setattr(graphed_step, "_check_capturable", lambda optimizer: None)
