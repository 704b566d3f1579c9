"""torch.ops.aegis.token_probabilities on a GPU: the CPU's bits, on torch's stream, in graphs.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import math

import aegis
import pytest
import torch

token_probabilities = torch.ops.aegis.token_probabilities
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
    [1, 700, 1, 0],
    [1, 700, 0.6, 0.1],
    [0, 0, 1, 0],
    [math.inf, 0, 0.5, 0],
]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 17, 300, 5000, 151_936])
@pytest.mark.parametrize("keep_ties", [False, True])
def test_bits_are_those_of_the_cpu(dtype, width, keep_ties):
    scores = random(8, width + 3, dtype=dtype)[:, 1 : width + 1] * 3
    for row in SETTINGS:
        settings = torch.tensor([row], dtype=torch.float32)
        want = token_probabilities(scores, settings, keep_ties)
        assert torch.equal(token_probabilities(scores.cuda(), settings.cuda(), keep_ties).cpu(), want), row
        steps = torch.full((8, 2, width), 7.0).cuda()
        token_probabilities.out(scores.cuda(), settings.cuda(), keep_ties, out=steps[:, 1])
        assert torch.equal(steps[:, 1].cpu(), want)
        assert (steps[:, 0] == 7).all()


def test_rows_of_every_kind_case14_case15_case17():
    scores = random(6, 3000)
    scores[0, 1700] = math.nan
    scores[1] = -math.inf
    scores[2, 99] = math.inf
    scores[3] = 0
    scores[4, 1:] = -math.inf
    for row in ([1.0, 60, 0.9, 0], [1.0, 1234, 1, 0]):
        settings = torch.tensor([row])
        assert torch.equal(
            token_probabilities(scores.cuda(), settings.cuda()).cpu(), token_probabilities(scores, settings)
        )


def test_runs_on_the_current_stream():
    scores, settings = torch.zeros(1, 500).cuda(), torch.tensor([[0.0, 0, 1, 0]]).cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        scores[0, 321] = 5  # an operator on another stream would not see it
        got = token_probabilities(scores, settings)
    stream.synchronize()
    assert got[0, 321] == 1


def test_a_captured_graph_follows_scores_and_settings():
    sampler, scores = aegis.FusedLogitsSampler(top_k=50, top_p=0.9), random(2, 10_000).cuda()
    sampler.probabilities(scores)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = sampler.probabilities(scores)
    for seed in range(3):
        scores.copy_(random(2, 10_000) * (seed + 1))
        graph.replay()
        assert torch.equal(got, sampler.probabilities(scores))


def test_operands_on_two_devices():
    scores, settings = random(2, 9).cuda(), torch.ones(1, 4).cuda()
    with pytest.raises(ValueError, match="settings: expected to be on the device of scores, got another device"):
        token_probabilities(scores, settings.cpu())
    with pytest.raises(ValueError, match="out: expected to be on the device of scores, got another device"):
        token_probabilities.out(scores, settings, out=torch.empty(2, 9))
