"""Receipts that anybody may have written: what is refused, and what a check finds."""

import json
import os

import aegis
import numpy as np
import pytest
import torch
from aegis.cli import main
from aegis.evidence import IntegrityChain, Receipt, Replay, read_receipt, verify_receipt
from aegis.evidence.receipt_file import seal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture
def path(tmp_path):
    """The receipt of a run of 10 steps with two chains, two artefacts and data."""
    np.arange(3000, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    dataset = aegis.TokenDataset(tmp_path / "tokens.bin", 16, dtype="uint16")
    chains = {"batches": IntegrityChain(), "losses": IntegrityChain(bits=64, lanes=False)}
    with Receipt(
        tmp_path / "receipt.json",
        configuration={"a": 1},
        seeds={"s": 3},
        datasets={"train": dataset},
        chains=chains,
        every=2,
        counters=iter([{"steps": 0}, {"steps": 0}, {"steps": 10}]).__next__,
    ) as receipt:
        rows = ["step,loss"]
        for step in range(1, 11):
            for chain in chains.values():
                chain.add(step, step / 3, torch.full((2,), step))
            receipt.step(step, step / 3)
            rows.append(f"{step},{step / 3!r}")
        (tmp_path / "loss.csv").write_text("\n".join(rows) + "\n")
        (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 9)
        receipt.add_artefact(tmp_path / "loss.csv", losses=True)
        receipt.add_artefact(tmp_path / "model.bin")
    return tmp_path / "receipt.json"


def failures(path, **options):
    return {check.name: check.detail for check in verify_receipt(path, **options) if check.passed is False}


def edit(path, change, *, sealed):
    document = json.loads(path.read_text())
    del document["sha256"]
    change(document)
    document = seal(document)
    path.write_text(json.dumps(document if sealed else {**document, "sha256": "0" * 64}))


def test_untouched(path, capsys):
    assert failures(path) == {}
    assert main(["verify", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("         ok  ") == len(verify_receipt(path)) == 11
    assert printed.err == ""


def test_folder_may_be_moved(path, tmp_path_factory):
    place = tmp_path_factory.mktemp("moved") / "run"
    os.rename(path.parent, place)
    assert failures(place / "receipt.json") == {}


def change_model(folder):
    (folder / "model.bin").write_bytes(bytes(256 * 9))


def change_token(folder):
    data = np.fromfile(folder / "tokens.bin", np.uint16)
    data[7] = 0
    data.tofile(folder / "tokens.bin")


def pipe_in_place_of_model(folder):
    (folder / "model.bin").unlink()
    os.mkfifo(folder / "model.bin")


@pytest.mark.parametrize(
    ("harm", "name", "message"),
    [
        (change_model, "artefact model.bin", "expected SHA-256"),
        (lambda f: (f / "model.bin").write_bytes(b"x"), "artefact model.bin", "expected 2,304 bytes, got 1"),
        (lambda f: (f / "model.bin").unlink(), "artefact model.bin", "No such file"),
        (pipe_in_place_of_model, "artefact model.bin", "expected 2,304 bytes, got 0"),
        (change_token, "data train", "the data has changed: expected fingerprint"),
        (lambda f: (f / "tokens.bin").unlink(), "data train", "No such file"),
        (lambda f: (f / "tokens.bin").write_bytes(bytes(4000)), "data train", "expected samples 187, got 124"),
        (lambda f: (f / "tokens.bin").write_bytes(bytes(4001)), "data train", "tokens.bin"),
    ],
)
def test_harm_is_named(path, harm, name, message, capsys):
    harm(path.parent)
    found = failures(path)
    assert list(found) == [name]
    assert message in found[name]
    assert main(["verify", str(path)]) == 1
    printed = capsys.readouterr()
    assert f"     FAILED  {name}: " in printed.out
    assert "aegis verify: 1 of 11 checks failed" in printed.err


def set_at(*place):
    *way, last, value = place

    def change(document):
        for name in way:
            document = document[name]
        document[last] = value

    return change


def swap_marks(document):
    marks = document["chains"]["batches"]["marks"]
    document["chains"]["batches"]["marks"] = dict(reversed(marks.items()))


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        (set_at("status", "running"), "status", "never written"),
        (set_at("steps", "last", 11), "counters", "expected 11 steps, got 0 at the start and 10 at the end"),
        (set_at("losses", "first", None), "losses", "expected a first and a last loss"),
        (set_at("losses", "sha256", "0" * 64), "losses in loss.csv", "is not the receipt's"),
        (set_at("losses", "file", "model.bin"), "losses in model.bin", "codec can't decode"),
        (set_at("counters", "end", "minor_faults", 0), "counters", "expected minor_faults to grow"),
        (set_at("counters", "end", "more", 0), "counters", "more is at one"),
        (set_at("precision", "end", "all", "tf32"), "precision", "changed while the run went on"),
        (set_at("chains", "batches", "end", "records", 0), "chain batches", "its value changed without a record"),
        (set_at("chains", "batches", "start", "records", 99), "chain batches", "expected records to grow"),
        (set_at("chains", "losses", "start", "lanes", True), "chain losses", "expected one kind of chain"),
        (set_at("chains", "losses", "marks", "2", "0" * 8), "chain losses", "expected a value of 64 bits at step 2"),
        (set_at("chains", "batches", "marks", "3", "0" * 8), "chain batches", "expected a value every 2 steps from 2"),
        (swap_marks, "chain batches", "in order"),
        (set_at("data", 0, "fingerprint", "x"), "data train", "the data has changed"),
        (set_at("data", 0, "source", "stride", 1), "data train", "the data has changed"),
        (set_at("data", 0, "source", "paths", []), "data train", "expected at least one token file"),
        (set_at("data", 0, "source", "paths", ["/dev/zero"]), "data train", "/dev/zero"),
        (set_at("artefacts", 0, "path", "gone"), "artefact gone", "No such file"),
    ],
)
def test_edits_are_noticed_by_the_seal_and_where_they_contradict_by_themselves(path, change, name, message):
    edit(path, change, sealed=True)
    found = failures(path)
    assert message in found[name]
    assert "seal" not in found
    edit(path, change, sealed=False)
    assert "the receipt was changed after it was written" in failures(path)["seal"]


def test_any_edit_breaks_the_seal(path):
    text = path.read_text()
    path.write_text(text.replace('"a": 1', '"a": 2'))
    assert list(failures(path)) == ["seal"]
    path.write_text(" ".join(text.split()))  # other spaces are no other receipt
    assert failures(path) == {}


REFUSED = [
    ("", "expected a receipt in JSON"),
    ("{", "expected a receipt in JSON"),
    ("[1]", "expected a receipt of aegis, got something else"),
    ("{}", "expected a receipt of aegis, got something else"),
    ('{"format": "aegis receipt", "version": 2}', "expected a receipt of version 1, got 2"),
    ('{"format": "aegis receipt", "version": true}', "expected an object with format, version"),
    ('{"format": "aegis receipt", "version": 1}', "expected an object with format, version"),
    ('{"format": "aegis receipt", "format": "aegis receipt"}', "a key stands twice"),
    ('{"format": NaN}', "NaN is not a number of JSON"),
    ('{"format": ' + "9" * 5000 + "}", "expected a receipt in JSON"),
    ("[" * 100_000, "nested too deeply"),
    ("\ud800", "expected a receipt in JSON"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_no_receipt(tmp_path, text, message, capsys):
    (tmp_path / "receipt.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match=message):
        read_receipt(tmp_path / "receipt.json")
    assert main(["verify", str(tmp_path / "receipt.json")]) == 2
    assert capsys.readouterr().err.startswith("aegis verify: error: ")


def test_pipes_devices_and_large_files_are_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises((ValueError, OSError), match=r"expected a regular file|directory"):
            read_receipt(path)
    with open(tmp_path / "large", "wb") as file:
        file.truncate(2**40)
    monkeypatch.setattr("aegis.evidence.receipt_file._MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="expected at most 1000 bytes"):
        read_receipt(tmp_path / "large")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_at("artefacts", 0, "path", "../x"), r"artefacts\[0\].path: expected a file in the receipt's folder"),
        (
            set_at("artefacts", 0, "path", "/etc/passwd"),
            r"artefacts\[0\].path: expected a file in the receipt's folder",
        ),
        (set_at("artefacts", 0, "bytes", -1), r"artefacts\[0\].bytes: expected a whole number from 0 on, got -1"),
        (set_at("artefacts", 1, "sha256", "x"), r"artefacts\[1\].sha256: expected 64 hex digits, got 'x'"),
        (set_at("artefacts", 1, "sha256", "A" * 64), r"artefacts\[1\].sha256: expected 64 hex digits"),
        (set_at("artefacts", 0, "more", 1), r"artefacts\[0\]: expected an object with path, bytes, sha256"),
        (set_at("chains", "batches", "end", "value", 2**32), "chains.batches.end.value: expected a number of 32 bits"),
        (
            set_at("chains", "batches", "end", "value", -1),
            "chains.batches.end.value: expected a whole number of 64 bits",
        ),
        (set_at("chains", "batches", "end", "bits", 16), "chains.batches.end.bits: expected one of 32, 64, got 16"),
        (set_at("chains", "batches", "end", "lanes", 1), "chains.batches.end.lanes: expected one of True, False"),
        (set_at("chains", "batches", "end", "records", 2**64), "chains.batches.end.records: expected a whole number"),
        (set_at("chains", "batches", "marks", "02", "0" * 8), "chains.batches.marks: expected an object with steps"),
        (set_at("chains", "batches", "marks", "2", "0x0"), "chains.batches.marks.2: expected 8 or 16 hex digits"),
        (set_at("steps", "every", 0), "steps.every: expected a whole number from 1 on, got 0"),
        (set_at("steps", "last", 1.0), "steps.last: expected a whole number from 0 on, got 1.0"),
        (set_at("losses", "last", 1.0), "losses.last: expected a loss as text"),
        (set_at("losses", "last", "1.00"), "losses.last: expected a loss as text"),
        (set_at("status", "fine"), "status: expected one of 'running', 'complete'"),
        (set_at("data", 0, "source", "dtype", "f4,(2"), r"data\[0\].source.dtype: expected a dtype such as '<u2', got"),
        (set_at("data", 0, "source", {}), r"data\[0\].source: expected an object with paths"),
        (set_at("data", 0, "source", "paths", [""]), r"data\[0\].source.paths\[0\]: expected a path, got ''"),
        (set_at("counters", "start", "seconds", "1"), "counters.start.seconds: expected a number, got '1'"),
        (set_at("counters", "start", []), "counters.start: expected an object, got "),
        (set_at("sha256", None), None),
    ],
)
def test_values_of_another_kind_are_refused_with_their_place(path, change, message):
    if message is None:
        document = json.loads(path.read_text())
        document["sha256"] = None
        path.write_text(json.dumps(document))
        message = "sha256: expected 64 hex digits, got None"
    else:
        edit(path, change, sealed=True)
    with pytest.raises(ValueError, match=message):
        read_receipt(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_anywhere_ends_in_checks_or_in_a_value_error(path, data):
    good = path.read_text()
    document = json.loads(good)
    at = document
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(at[key], dict | list) and at[key] and data.draw(st.booleans())):
            break
        at = at[key]
    at[key] = data.draw(JSON)
    changed = json.dumps(document) != json.dumps(json.loads(good))
    path.write_text(json.dumps(document))
    try:
        refused, found = None, failures(path)
    except ValueError as error:
        refused, found = str(error), {}
    path.write_text(good)
    if refused is not None:
        assert changed
        assert refused.startswith(f"{path}: ")
    else:
        assert ("seal" in found) == changed


def test_replay_names_the_first_step_that_differs(path):
    record = read_receipt(path)
    again = Replay(record)
    for step in range(1, 11):
        for name, chain in again.chains.items():
            other = name == "batches" and step == 7
            chain.add(step, step / 3, torch.full((2,), step + other))
        again.step(step)
    assert again.difference("losses") is None
    assert again.compared == {"batches": 6, "losses": 10}
    assert again.difference("batches").startswith("the first difference is between steps 7 and 8: expected ")
    for only, message in ((("other",), "expected the chains other"), ((), None)):
        if message is None:
            assert Replay(record, only=only).chains == {}
        else:
            with pytest.raises(ValueError, match=message):
                Replay(record, only=only)
    record["steps"]["first"] = 4
    with pytest.raises(ValueError, match="got one that was resumed at step 4"):
        Replay(record)


def test_names_that_would_move_the_cursor_are_shown_as_escapes(path, capsys):
    edit(path, set_at("artefacts", 0, "path", "gone\x1b[2J\n"), sealed=True)
    edit(path, set_at("data", 0, "source", "paths", ["\udcff"]), sealed=True)
    assert main(["verify", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "artefact gone\\x1b[2J\\n: " in printed
    assert "\x1b" not in printed
    assert "     FAILED  data train: " in printed


def test_data_that_the_receipt_cannot_open_may_be_given(tmp_path):
    data = np.arange(600, dtype=np.float32).reshape(100, 6)
    np.save(tmp_path / "records.npy", data)
    dataset = aegis.RecordDataset(tmp_path / "records.npy")
    path = tmp_path / "receipt.json"
    Receipt(path, configuration={}, datasets={"r": dataset}).write("complete")
    assert [check.passed for check in verify_receipt(path) if check.name == "data r"] == [None]
    assert failures(path, datasets={"r": dataset}) == {}
    np.save(tmp_path / "records.npy", data + 1)
    assert (
        "the data has changed"
        in failures(path, datasets={"r": aegis.RecordDataset(tmp_path / "records.npy")})["data r"]
    )


LONG = "9" * 200_000


@pytest.mark.parametrize(
    "text", [f"step,loss\n1,{LONG}\n", LONG, f'step,loss\n1,"{LONG}'], ids=["cell", "name", "quotes"]
)
def test_losses_that_are_no_csv(path, text):
    (path.parent / "loss.csv").write_text(text)
    assert "field larger than" in failures(path)["losses in loss.csv"]


def test_nesting_at_the_edge_of_what_python_reads(path):
    """There JSON can be read whose seal cannot be computed."""
    text = path.read_text()

    def outcome(depth):
        path.write_text(text.replace('"a": 1', f'"a": {"[" * depth}{"]" * depth}'))
        try:
            return tuple(failures(path))
        except ValueError as error:
            return str(error).partition("got ")[2]

    found = {outcome(depth) for depth in range(800, 1001, 2)}
    assert found == {("seal",), "JSON that is nested too deeply"}
