"""torch.ops.aegis.sample on a GPU: the CPU's tokens, on torch's stream, in graphs.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import math

import aegis
import pytest
import torch

sample = torch.ops.aegis.sample
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.skipif(not aegis.build_info()["cuda"], reason="this aegis was built without CUDA"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SETTINGS = [
    [1, 0, 1, 0],
    [0.7, 50, 0.9, 0],
    [2, 0, 1, 0.02],
    [1, 0, 0.9, 0],
    [0.2, 0, 0.9, 0],
    [1, 256, 0.5, 0.01],
    [1, 700, 1, 0],
    [1, 700, 0.6, 0.1],
    [0, 0, 1, 0],
    [1, 1, 1, 0],
    [math.inf, 0, 0.5, 0],
]


def states(rows: int) -> torch.Tensor:
    state = torch.zeros(rows, 4, dtype=torch.int64)
    state[:, 0], state[:, 1] = 7, torch.arange(rows)
    return state


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 17, 300, 5000, 128_256])
@pytest.mark.parametrize("keep_ties", [False, True])
def test_tokens_are_those_of_the_cpu(dtype, width, keep_ties):
    logits = random(8, width + 3, dtype=dtype)[:, 1 : width + 1] * 3
    for row in SETTINGS:
        settings = torch.tensor([row], dtype=torch.float32)
        want = sample(logits, settings, states(8), keep_ties)
        got = sample(logits.cuda(), settings.cuda(), states(8).cuda(), keep_ties)
        assert torch.equal(got[0].cpu(), want[0]), row
        assert torch.equal(got[1].cpu(), want[1])
        torch.testing.assert_close(got[2].cpu(), want[2], rtol=1e-6, atol=1e-6)


def test_rows_of_every_kind_case14_case15_case17():
    logits = random(6, 3000)
    logits[0, 1700] = math.nan
    logits[1] = -math.inf
    logits[2, 99] = math.inf
    logits[3] = 0
    logits[4, 1:] = -math.inf
    settings = torch.tensor([[1.0, 60, 0.9, 0]])
    want = sample(logits, settings, states(6))
    got = sample(logits.cuda(), settings.cuda(), states(6).cuda())
    assert torch.equal(got[0].cpu(), want[0])
    assert got[1].tolist() == [False, False, True, True, True, True]


def test_runs_on_the_current_stream():
    logits, settings, state = torch.zeros(1, 500).cuda(), torch.tensor([[0.0, 0, 1, 0]]).cuda(), states(1).cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        logits[0, 321] = 5  # an operator on another stream would not see it
        tokens = sample(logits, settings, state)[0]
    stream.synchronize()
    assert tokens.item() == 321


def test_replays_of_a_graph_differ_and_repeat_case12():
    logits, sampler = torch.zeros(2, 10_000).cuda(), aegis.FusedLogitsSampler(seed=5)
    eager = [sampler(logits).tolist() for _ in range(6)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = sampler(logits)
    for _ in range(2):
        sampler.reset()
        replayed = []
        for _ in range(6):
            graph.replay()
            replayed.append(tokens.tolist())
        assert replayed == eager
    assert len({tuple(t) for t in eager}) == 6


def test_operands_on_two_devices():
    logits, settings, state = random(2, 9).cuda(), torch.ones(1, 4).cuda(), states(2).cuda()
    with pytest.raises(ValueError, match="settings: expected to be on the device of logits, got another device"):
        sample(logits, settings.cpu(), state)
    with pytest.raises(ValueError, match="state: expected to be on the device of logits, got another device"):
        sample(logits, settings, state.cpu())
    with pytest.raises(ValueError, match="tokens: expected to be on the device of logits, got another device"):
        sample.out(logits, settings, state, tokens=torch.empty(2, dtype=torch.int64))
