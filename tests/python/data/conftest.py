import subprocess
import sysconfig
from pathlib import Path

import aegis
import aegis.data.loader as loader_module
import contract
import numpy as np
import pybind11
import pytest
from aegis.data import pack as pack_module
from fake_link import FakeLink


@pytest.fixture
def every_size_in_slots(monkeypatch):
    """Also what would be left to malloc in the process that uses the batch."""
    contract.every_size_in_slots(monkeypatch)


@pytest.fixture(scope="session")
def blocked_filler(tmp_path_factory):
    """The folder of a compiled module whose BlockedFiller fills nothing before its release()."""
    folder = tmp_path_factory.mktemp("blocked_filler")
    here = Path(__file__)
    subprocess.run(
        [
            *("g++", "-std=c++20", "-O0", "-shared", "-fPIC", "-fvisibility=hidden"),
            *(str(here.with_name("blocked_filler.cpp")), f"-I{here.parents[3] / 'csrc'}"),
            *(f"-I{pybind11.get_include()}", f"-I{sysconfig.get_path('include')}"),
            *("-o", str(folder / f"blocked_filler{sysconfig.get_config_var('EXT_SUFFIX')}")),
        ],
        check=True,
    )
    return folder


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


@pytest.fixture(params=contract.WAYS)
def way(request, token_file, monkeypatch):
    """Each way in which batches come, or those that a test asks for by ``indirect``."""
    contract.every_size_in_slots(monkeypatch)
    return contract.Way(request.param, token_file)


@pytest.fixture
def links(monkeypatch):
    """The links that loaders make, newest last; ``links.seed`` and ``links.eager`` are of those to come."""

    class Links(list):
        seed, eager = 0, 0.3

        def __repr__(self):
            return f"{len(self)} links"

    made = Links()

    def make(device):
        made.append(FakeLink(made.seed, made.eager))
        return made[-1]

    monkeypatch.setattr(loader_module, "make_link", make)
    return made


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 64 bytes, or of 16 tokens."""
    monkeypatch.setattr(pack_module, "CHUNK_BYTES", 64)
