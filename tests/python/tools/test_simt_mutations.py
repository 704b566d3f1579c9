"""The faults of `make mutations` fit the kernels of today. Only it can say whether tests notice them: in minutes."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
HARDWARE_ALONE = {"float8_tiles", "float8_tiles_sm100", "mma_s8", "simt", "tcgen05", "tma"}  # nothing the executor runs


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("simt_mutations")


def test_every_fault_changes_text_that_its_kernel_has(tool):
    texts = {fault.file: (ROOT / fault.file).read_text() for fault in tool.FAULTS}
    broken = {fault: tool.with_fault(texts[fault.file], fault) for fault in tool.FAULTS}
    assert [fault for fault, text in broken.items() if text is None] == []
    assert [fault for fault, text in broken.items() if text == texts[fault.file]] == []
    assert len({(fault.file, text) for fault, text in broken.items()}) == len(tool.FAULTS), "a fault stands twice"


def test_every_fault_has_a_test(tool):
    declared = (ROOT / "cmake" / "simt.cmake").read_text()
    for test in {tool.test_of(fault) for fault in tool.FAULTS}:
        assert (ROOT / test).is_file(), test
        assert f"aegis_simt_test({Path(test).stem.removeprefix('test_')}" in declared, test


def test_every_kernel_that_runs_without_a_gpu_has_faults(tool):
    kernels = {path.stem for path in (ROOT / "csrc" / "kernels" / "cuda").glob("*.cuh")}
    assert kernels - {Path(fault.file).stem for fault in tool.FAULTS if fault.file.endswith(".cuh")} <= HARDWARE_ALONE
    assert kernels >= HARDWARE_ALONE, "this list names a kernel that is not there"


def test_a_fault_whose_text_is_gone_is_missed_and_says_so(tool):
    gone = tool.Fault("csrc/kernels/cuda/kv_move_.cuh", "none", "no such text", "")
    third = tool.Fault("csrc/kernels/cuda/kv_move_.cuh", "none", "job.slots", "", nth=30)
    assert tool.try_fault(None, gone, tool.test_of(gone)) == (False, "not in kv_move_.cuh any more: no such text")
    assert tool.try_fault(None, third, tool.test_of(third)) == (False, "not in kv_move_.cuh any more: job.slots")
