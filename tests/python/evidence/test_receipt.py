"""Receipt: what is written, when, and what stays where it cannot be written."""

import errno
import hashlib
import json
import os
import resource
import struct

import aegis
import numpy as np
import pytest
import torch
from aegis.evidence import IntegrityChain, Receipt, read_receipt, verify_receipt
from aegis.evidence.receipt_file import seal_of
from torch.utils.data import IterableDataset, TensorDataset


@pytest.fixture
def tokens(tmp_path):
    np.arange(3000, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    return aegis.TokenDataset(tmp_path / "tokens.bin", 16, dtype="uint16", stride=3)


def a_run(receipt, chain, first=1, last=10):
    for step in range(first, last + 1):
        chain.add(step, 1 / step, torch.full((3,), step))
        receipt.step(step, 1 / step)


def failures(path, **options):
    return {check.name: check.detail for check in verify_receipt(path, **options) if check.passed is False}


def test_everything_is_in_the_file(tmp_path, tokens):
    path, chain, steps = tmp_path / "receipt.json", IntegrityChain(bits=64), [0]
    configuration = {"layers": 2, "lr": 1e-3, "names": ["a", None, True]}
    datasets = {"train": tokens, "other": TensorDataset(torch.zeros(4, 2))}
    with Receipt(
        path,
        configuration=configuration,
        seeds={"order": 2**63},
        datasets=datasets,
        chains={"all": chain},
        every=4,
        counters=lambda: {"steps": steps[0]},
    ) as receipt:
        assert read_receipt(path)["status"] == "running"
        a_run(receipt, chain)
        steps[0] = 10
        (tmp_path / "below").mkdir()
        (tmp_path / "below" / "model.bin").write_bytes(b"weights")
        receipt.add_artefact(tmp_path / "below" / "model.bin")
    found = read_receipt(path)
    assert found["status"] == "complete"
    assert found["configuration"] == configuration
    assert found["seeds"] == {"order": 2**63}
    assert found["versions"]["aegis"] == aegis.__version__
    assert found["host"]["isa"] == aegis.cpu_isa()
    assert found["steps"] == {"first": 1, "last": 10, "every": 4}
    assert list(found["chains"]["all"]["marks"]) == ["4", "8"]
    assert found["chains"]["all"]["start"]["records"] == 0
    assert found["chains"]["all"]["end"] == chain.state()
    digest = hashlib.sha256(b"".join(struct.pack("<qd", step, 1 / step) for step in range(1, 11))).hexdigest()
    assert found["losses"] == {"first": "1.0", "last": "0.1", "sha256": digest, "file": None}
    train, other = found["data"]
    assert train["fingerprint"] == tokens.fingerprint()
    assert (train["samples"], train["source"]["paths"]) == (len(tokens), ["tokens.bin"])
    assert (other["kind"], other["samples"], other["source"]) == ("TensorDataset", 4, None)
    want = {"path": "below/model.bin", "bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}
    assert found["artefacts"] == [want]
    assert found["sha256"] == seal_of(found)
    assert failures(path) == {}
    assert {check.name for check in verify_receipt(path) if check.passed is None} == {"data other"}


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed"), (SystemExit, "failed")]
)
def test_run_that_does_not_reach_its_end_leaves_a_valid_receipt(tmp_path, error, status):
    path, chain = tmp_path / "receipt.json", IntegrityChain()

    def run():
        with Receipt(path, configuration={}, chains={"c": chain}, every=1) as receipt:
            a_run(receipt, chain, last=3)
            raise error

    with pytest.raises(error):
        run()
    found = read_receipt(path)
    assert (found["status"], found["steps"]["last"]) == (status, 3)
    assert failures(path) == {}


def test_killed_run_leaves_a_receipt_that_says_so(tmp_path):
    path = tmp_path / "receipt.json"
    child = os.fork()
    if child == 0:
        receipt = Receipt(path, configuration={})
        receipt.step(1, 0.5)
        receipt.write()
        receipt.step(2, 0.4)
        os._exit(9)
    os.waitpid(child, 0)
    assert read_receipt(path)["steps"]["last"] == 1
    assert failures(path) == {"status": "the end of the run was never written: it goes on, or was killed"}
    assert [file.name for file in tmp_path.iterdir()] == ["receipt.json"]


def test_losses_of_every_kind(tmp_path):
    path = tmp_path / "receipt.json"
    for losses in ([], [float("nan")], [float("inf"), -0.0], [1e-310, -float("inf")]):
        with Receipt(path, configuration={}) as receipt:
            for step, loss in enumerate(losses, 1):
                receipt.step(step, loss)
        assert failures(path) == {}
        assert read_receipt(path)["losses"]["last"] == (repr(losses[-1]) if losses else None)


def test_numbers_of_other_libraries_and_text_of_every_kind(tmp_path):
    path = tmp_path / "receipt.json"
    receipt = Receipt(path, configuration={"é": "\ud800 \x1b"}, every=np.int64(1), chains={"c": IntegrityChain()})
    receipt.step(np.int64(1), np.float64(0.1))
    receipt.step(2, torch.tensor(0.5))
    receipt.write("complete")
    assert failures(path) == {}
    assert read_receipt(path)["losses"]["last"] == "0.5"
    assert read_receipt(path)["configuration"] == {"é": "\ud800 \x1b"}


def test_chain_on_a_thread_and_a_run_that_was_resumed(tmp_path):
    path, chain = tmp_path / "receipt.json", IntegrityChain(background=True)
    chain.add(7, 0.5)
    with Receipt(path, configuration={}, chains={"c": chain}, every=5, first_step=8) as receipt:
        a_run(receipt, chain, 8, 20)
    found = read_receipt(path)
    assert found["steps"] == {"first": 8, "last": 20, "every": 5}
    assert found["chains"]["c"]["start"]["records"] == 1
    assert list(found["chains"]["c"]["marks"]) == ["10", "15", "20"]
    assert found["chains"]["c"]["marks"]["20"] == str(chain)
    assert failures(path) == {}
    chain.close()


def test_data_sets_without_length_or_fingerprint(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    path = tmp_path / "receipt.json"
    Receipt(path, configuration={}, datasets={"stream": Stream(), "list": [1, 2]}).write("complete")
    stream, numbers = read_receipt(path)["data"]
    assert (stream["samples"], stream["fingerprint"], numbers["samples"]) == (None, None, 2)


# --- where it cannot be written -----------------------------------------------------------------------------------


def test_full_disk_leaves_the_older_receipt_and_can_be_tried_again(tmp_path):
    path = tmp_path / "receipt.json"
    receipt = Receipt(path, configuration={"text": "x" * 50_000})
    older = path.read_bytes()
    receipt.step(1, 0.5)

    def fail():
        with receipt:
            raise KeyError("the run's own error")

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # what a full disk is to a file that grows
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            receipt.write("complete")
        with pytest.raises(KeyError) as first:
            fail()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert "could not be written either: [Errno 27] File too large" in first.value.__notes__[0]
    assert path.read_bytes() == older
    assert [file.name for file in tmp_path.iterdir()] == ["receipt.json"]
    receipt.write("complete")
    assert read_receipt(path)["steps"]["last"] == 1


@pytest.mark.parametrize("place", ["missing/receipt.json", "file/receipt.json", "folder"])
def test_place_that_cannot_be_written_is_an_error_before_the_first_step(tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=place.split("/")[0]):
        Receipt(tmp_path / place, configuration={})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]


def test_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.geteuid() == 0:  # who may write everywhere
                os.setresuid(65534, 65534, 65534)
            Receipt(tmp_path / "receipt.json", configuration={})
        except PermissionError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- bad arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"configuration": {"x": object()}}, "configuration: expected values that JSON can hold"),
        ({"configuration": {"x": float("nan")}}, "configuration: expected values that JSON can hold"),
        ({"configuration": {}, "seeds": {"x": 1.5}}, "seeds: expected whole numbers"),
        ({"configuration": {}, "seeds": {"x": 2**64}}, "seeds: expected whole numbers of 64 bits"),
        ({"configuration": {}, "every": 0}, "every: expected at least 1, got 0"),
        ({"configuration": {}, "first_step": 0}, "first_step: expected at least 1, got 0"),
        (
            {"configuration": {}, "counters": lambda: {"x": float("inf")}},
            "counters: expected finite numbers, got x inf",
        ),
        ({"configuration": {}, "counters": lambda: {"x": "3"}}, "counters: expected finite numbers, got x '3'"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        Receipt(tmp_path / "receipt.json", **arguments)
    assert not list(tmp_path.iterdir())


def test_steps_out_of_turn_and_artefacts_elsewhere(tmp_path):
    (tmp_path / "run").mkdir()
    receipt = Receipt(tmp_path / "run" / "receipt.json", configuration={}, first_step=3)
    for step in (2, 4, 1):
        with pytest.raises(ValueError, match=f"step: expected 3, got {step}"):
            receipt.step(step, 0.0)
    (tmp_path / "outside").touch()
    with pytest.raises(ValueError, match="path: expected a file in the receipt's folder or below it"):
        receipt.add_artefact(tmp_path / "outside")
    with pytest.raises(FileNotFoundError):
        receipt.add_artefact(tmp_path / "run" / "missing")
    os.mkfifo(tmp_path / "run" / "pipe")
    with pytest.raises(ValueError, match="expected a regular file"):
        receipt.add_artefact(tmp_path / "run" / "pipe")
    with pytest.raises(ValueError, match="status: expected one of running, complete"):
        receipt.write("done")
    receipt.write("complete")
    assert json.loads((tmp_path / "run" / "receipt.json").read_text())["artefacts"] == []
