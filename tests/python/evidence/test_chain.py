"""IntegrityChain: FNV-1a as published, over everything in a record, resumable."""

import gc
import os
import signal
import threading
from collections import UserString
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from aegis import _C
from aegis.evidence import IntegrityChain
from hypothesis import given
from hypothesis import strategies as st

KINDS = [{"bits": 32, "lanes": True}, {"bits": 32, "lanes": False}, {"bits": 64, "lanes": True}]


def fnv1a(data, bits=32, state=None):
    state = {32: 0x811C9DC5, 64: 0xCBF29CE484222325}[bits] if state is None else state
    prime = {32: 0x01000193, 64: 0x100000001B3}[bits]
    for byte in data:
        state = (state ^ byte) * prime % 2**bits
    return state


def lanes_digest(data):
    lanes = [fnv1a(data[i::64]) for i in range(64)]
    return fnv1a(b"".join(lane.to_bytes(4, "little") for lane in lanes) + len(data).to_bytes(8, "little"))


@given(st.binary(max_size=300), st.sampled_from([32, 64]))
def test_fnv1a_is_that_of_its_authors(data, bits):
    assert _C.fnv1a(data, bits) == fnv1a(data, bits)
    assert _C.fnv_lanes_digest(data) == lanes_digest(data)


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(), st.lists(st.binary(max_size=200), max_size=3)),
        max_size=4,
    ),
    st.sampled_from(KINDS),
)
def test_a_record_is_what_is_documented(records, kind):
    chain, state = IntegrityChain(**kind), None
    for step, loss, parts in records:
        arrays = [np.frombuffer(part, np.uint8) for part in parts]
        chain.add(step, loss, arrays)
        body = step.to_bytes(8, "little", signed=True) + np.float64(loss).tobytes() + len(parts).to_bytes(8, "little")
        for part in parts:
            digest = lanes_digest(part).to_bytes(4, "little")
            body += len(part).to_bytes(8, "little") + (digest if kind["lanes"] else part)
        state = fnv1a(body, kind["bits"], state)
    assert chain.value == fnv1a(b"", kind["bits"], state)
    assert int(str(chain), 16) == chain.value
    assert chain.state()["records"] == len(records)


@dataclass
class Batch:
    x: torch.Tensor
    label: str


@pytest.mark.parametrize("background", [False, True])
def test_batches_of_any_nesting(background):
    x = torch.arange(600, dtype=torch.int64).view(20, 30)
    y = torch.randn(7).to(torch.bfloat16)
    want = IntegrityChain()
    want.add(1, 0.5, [x, y])
    for batch in ((x, y), [x, [y]], {"b": y, "a": x}, (Batch(x, "cat"), {"y": y}), [x.numpy(), y, 3, None]):
        chain = IntegrityChain(background=background)
        chain.add(1, 0.5, batch)
        assert chain.value == want.value
        chain.close()
    other = IntegrityChain()
    other.add(1, 0.5, [x.t().contiguous(), y])
    assert other.value != want.value
    strided = IntegrityChain()
    strided.add(1, 0.5, [x.t().contiguous().t(), y])
    assert strided.value == want.value, "it is the values in row-major order that count"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_of_every_kind_count_by_their_values_in_row_major_order():
    x = torch.arange(24.0).view(4, 6)
    z = torch.tensor([1 + 2j, 3 - 4j])
    kinds = {
        "scalar": (torch.tensor(3.5), torch.tensor([3.5])),
        "bool": (x > 3, (x > 3).to(torch.uint8)),
        "uint16": (x.to(torch.uint16), x.to(torch.int16)),
        "half": (x.half(), x.half().view(torch.int16)),
        "bfloat16": (x.bfloat16(), x.bfloat16().view(torch.int16)),
        "float8": (x.to(torch.float8_e4m3fn), x.to(torch.float8_e4m3fn).view(torch.uint8)),
        "gradient": (x.clone().requires_grad_(), x),
        "parameter": (torch.nn.Parameter(x), x),
        "transposed": (x.t(), x.t().contiguous()),
        "every other": (x[::2, 1::2], x[::2, 1::2].contiguous()),
        "expanded": (x[:, :1].expand(4, 5), x[:, :1].repeat(1, 5)),
        "conjugated": (z.conj(), torch.view_as_real(z.conj().resolve_conj())),
        "negated": (z.conj().imag, -torch.tensor([2.0, -4.0])),
        "no rows": (x[:0], torch.zeros(0)),
        "no columns": (x[:, :0], torch.zeros(0)),
        "nested": (torch.nested.nested_tensor([x[0]]), x[0]),
    }
    for name, (tensor, same) in kinds.items():
        want = IntegrityChain()
        want.add_batch([np.frombuffer(same.numpy().tobytes(), np.uint8)])
        for batch in (tensor, [tensor], {"a": tensor}):
            chain = IntegrityChain()
            chain.add_batch(batch)
            assert chain.value == want.value, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("background", [False, True])
def test_goes_on_from_a_state(kind, background):
    whole, rest = IntegrityChain(**kind), IntegrityChain(**kind, background=background)
    for step in range(40):
        if step == 13:
            rest.restore(whole.state())
        whole.add(step, step / 7, torch.full((100,), step))
        if step >= 13:
            rest.add(step, step / 7, torch.full((100,), step))
    assert rest.state() == whole.state()
    rest.close()


def test_background_takes_a_copy():
    batch = torch.zeros(1000)
    chain, want = IntegrityChain(background=True), IntegrityChain()
    for step in range(30):
        batch.fill_(step)
        want.add(step, 0.0, batch)
        chain.add(step, 0.0, batch)
    assert chain.value == want.value
    chain.close()
    chain.close()
    with pytest.raises(RuntimeError, match="expected to be open"):
        chain.add(1, 0.0)


def test_background_takes_the_loss_as_it_is_now():
    chain, want = IntegrityChain(background=True), IntegrityChain()
    loss = torch.tensor(1.5)
    for step in range(10):
        want.add(step, 1.5 + step)
        chain.add(step, loss)
        loss += 1.0
    assert chain.value == want.value
    chain.close()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("step", "loss", "error"),
    [(1.5, 0.0, TypeError), (2**63, 0.0, ValueError), (1, None, TypeError), (1, 10**400, OverflowError)],
)
def test_bad_records_are_refused_at_once_and_the_chain_goes_on(background, step, loss, error):
    chain, want = IntegrityChain(background=background), IntegrityChain()
    with pytest.raises(error):
        chain.add(step, loss)
    for each in (chain, want):
        each.add(-(2**63), 0.5)
    assert chain.value == want.value
    chain.close()


def test_text_of_every_kind_is_left_out():
    chain, want = IntegrityChain(), IntegrityChain()
    want.add_batch([torch.ones(2)])
    chain.add_batch(["ab", b"ab", UserString("ab"), torch.ones(2)])
    assert chain.value == want.value


def threads():
    """Names of this process's threads."""
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


def test_background_thread_ends_with_its_chain():
    before = threads().count("aegis-chain")
    chain = IntegrityChain(background=True)
    assert threads().count("aegis-chain") == before + 1
    chain.add(1, 0.0, torch.ones(1000))
    del chain
    gc.collect()
    assert threads().count("aegis-chain") == before


def test_threads_take_turns_at_a_background_chain():
    """Records are whole, though their order is chance."""
    chain = IntegrityChain(background=True)
    adders = [
        threading.Thread(target=lambda: [chain.add(1, 0.5, torch.ones(999)) for _ in range(100)]) for _ in range(3)
    ]
    for thread in adders:
        thread.start()
    for thread in adders:
        thread.join()
    want = IntegrityChain()
    for _ in range(300):
        want.add(1, 0.5, torch.ones(999))
    assert chain.state() == want.state()
    chain.close()


def test_background_memory_is_used_again():
    chain, batch = IntegrityChain(background=True), torch.ones(1 << 20)
    rss = []
    for step in range(40):
        chain.add(step, 0.0, batch)
        assert chain.state()["records"] == step + 1  # so that a second copy is never needed
        rss.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    assert rss[-1] - rss[3] < batch.nbytes
    chain.close()


def test_ctrl_c_gets_through_while_it_waits_for_the_background_thread():
    chain, batch = IntegrityChain(lanes=False, background=True), torch.ones(1 << 23)  # 32 MB: 40 ms and more each
    for step in range(8):
        chain.add(step, 0.0, batch)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with pytest.raises(KeyboardInterrupt):
            chain.state()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert chain.state()["records"] == 8
    chain.close()


def test_background_thread_is_missed_in_a_forked_child():
    chain = IntegrityChain(background=True)
    chain.add(0, 0.0)
    assert chain.state()["records"] == 1
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # where it would wait for a lock that nobody gives back
        status = 0
        for use in (lambda: chain.add(1, 0.0), chain.state):
            try:
                use()
                status = 1
            except RuntimeError as error:
                status |= 0 if "does not run in this process" in str(error) else 2
        chain.close()
        del chain
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    chain.add(1, 0.0)
    assert chain.state()["records"] == 2
    chain.close()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "state: expected bits, lanes, records, value, got {}"),
        ("7", "state: expected bits"),
        (
            {"bits": 64, "lanes": True, "value": 0, "records": 0},
            "state: expected one of 32 bits with lanes, got 64 bits",
        ),
        ({"bits": 32, "lanes": True, "value": 2**32, "records": 0}, "state: expected a value of 32 bits"),
        (
            {"bits": 32, "lanes": True, "value": -1, "records": 0},
            "state: expected value to be an int of 64 bits, got -1",
        ),
        ({"bits": 32, "lanes": "no", "value": 0, "records": 0}, "state: expected lanes to be a bool, got 'no'"),
        ({"bits": 32, "lanes": True, "value": "0", "records": 0}, "state: expected value to be an int of 64 bits"),
    ],
)
def test_corrupted_states_are_refused(state, message):
    chain = IntegrityChain()
    with pytest.raises(ValueError, match=message):
        chain.restore(state)
    assert chain.value == 0x811C9DC5


def test_bad_bits():
    apart = np.zeros((4, 4), np.uint8)[:, ::2]
    with pytest.raises(ValueError, match="data: expected contiguous memory, got stride 2 in dimension 1, not 1"):
        _C.fnv1a(apart, 32)
    with pytest.raises(ValueError, match="parts: expected contiguous memory"):
        _C.IntegrityChain(32, True).add(0, 0.0, [apart])
    with pytest.raises(ValueError, match="bits: expected 32 or 64, got 16"):
        IntegrityChain(bits=16)
