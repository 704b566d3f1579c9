import aegis
import numpy as np
import pytest


@pytest.fixture(scope="session")
def token_file(tmp_path_factory):
    """5,000 uint16 tokens, each its own position: a window shows where it was cut."""
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    np.arange(5000, dtype=np.uint16).tofile(path)
    return path


@pytest.fixture
def tokens(token_file):
    """4,984 overlapping windows of 16 tokens."""
    return aegis.TokenDataset(token_file, 16, dtype="uint16", stride=1)
