"""What FusedLogitsSampler takes, and what it refuses."""

import math

import aegis
import numpy as np
import pytest
import torch

Sampler = aegis.FusedLogitsSampler


@pytest.mark.parametrize("seeds", [np.array([7, 8]), (np.int64(7), 8), torch.tensor([7, 8]), [7 + 2**64, 8 - 2**64]])
def test_seeds_of_any_integer_type(seeds):
    logits = torch.randn(2, 50)
    assert torch.equal(Sampler(seed=seeds)(logits), Sampler(seed=[7, 8])(logits))
    assert torch.equal(Sampler(seed=np.int32(7))(logits), Sampler(seed=7)(logits))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temperature": math.nan}, ValueError, "temperature: expected a number, got nan"),
        ({"top_k": "5"}, TypeError, "top_k: expected a number, or one for each row, got '5'"),
        ({"top_k": True}, TypeError, "top_k: expected a number"),
        ({"top_p": [[0.5]]}, ValueError, r"top_p: expected a number, or one for each row, got shape \[1, 1\]"),
        ({"top_p": []}, ValueError, r"top_p: .*got shape \[0\]"),
        ({"min_p": -0.1}, ValueError, "min_p: expected 0 to 1, got -0.1"),
        ({"min_p": [0.1, 2]}, ValueError, "min_p: expected 0 to 1, got 2"),
        ({"repetition_penalty": 0}, ValueError, "repetition_penalty: expected a number above 0, got 0"),
        ({"temperature": [1, 2], "top_k": [1, 2, 3]}, ValueError, "top_k: expected 2 rows, as temperature has, got 3"),
        ({"seed": 1.5}, TypeError, "seed: expected an int, or one for each row, got 1.5"),
        ({"seed": True}, TypeError, "seed: expected an int"),
        ({"seed": []}, ValueError, "seed: expected an int, or one for each row, got none"),
        ({"top_k": 2.5}, ValueError, "top_k: expected a whole number, got 2.5"),
        ({"top_k": ["a"]}, TypeError, r"top_k: expected a number, or one for each row, got \['a'\]"),
        ({"temperature": 1j}, TypeError, "temperature: expected a number, or one for each row, got 1j"),
        ({"seed": [1.5]}, TypeError, r"seed: expected an int, or one for each row, got \[1.5\]"),
        ({"seed": [True]}, TypeError, r"seed: expected an int, or one for each row, got \[True\]"),
        ({"logit_bias": {1.5: 1}}, TypeError, "logit_bias: expected a mapping of tokens to numbers, got {1.5: 1}"),
        ({"logit_bias": [1]}, TypeError, r"logit_bias: expected a mapping of tokens to numbers, got \[1\]"),
        ({"logit_bias": {3: math.nan}}, ValueError, "logit_bias: expected numbers, got nan"),
        ({"seed": torch.ones(2)}, ValueError, "seed: expected a 1-D int64 tensor"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        Sampler(**options)


def test_bad_calls():
    with pytest.raises(ValueError, match=r"logits: expected a 2-D tensor \(batch, vocabulary\), got shape \[5\]"):
        Sampler()(torch.zeros(5))
    with pytest.raises(ValueError, match="logits: expected 1 to"):
        Sampler()(torch.zeros(2, 0))
    with pytest.raises(ValueError, match="logits: expected dtype float32, bfloat16 or float16, got float64"):
        Sampler()(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="temperature: expected 3 rows, as the logits have, got 2"):
        Sampler(temperature=[1, 2])(torch.zeros(3, 5))
    with pytest.raises(ValueError, match="seed: expected 3 rows, as the logits have, got 2"):
        Sampler(seed=[1, 2])(torch.zeros(3, 5))
    with pytest.raises(ValueError, match="input_ids: penalties need an int64 tensor of 2 dimensions, got None"):
        Sampler(presence_penalty=1)(torch.zeros(3, 5))
    with pytest.raises(ValueError, match="input_ids: expected 3 rows, as the logits have, got 2"):
        Sampler(presence_penalty=1)(torch.zeros(3, 5), torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"input_ids: penalties need an int64 tensor .* got torch.int32 of 2"):
        Sampler(presence_penalty=1)(torch.zeros(3, 5), torch.zeros(3, 4, dtype=torch.int32))
    with pytest.raises(TypeError, match=r"logits: expected a tensor .*, got list"):
        Sampler()([[0.0]])
    with pytest.raises(ValueError, match="tokens: expected dtype int64, got int32"):
        Sampler()(torch.zeros(3, 5), out=torch.empty(3, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="state: expected a call"):
        _ = Sampler().state
    assert Sampler(top_k=10**9)(torch.zeros(3, 5)).max() < 5
    assert Sampler(top_k=-3)(torch.zeros(3, 5)).max() < 5


def test_a_call_that_failed_leaves_the_sampler_as_it_was():
    sampler = Sampler(logit_bias={15: 100.0})
    assert sampler(torch.zeros(2, 20)).tolist() == [15, 15]
    with pytest.raises(ValueError, match="logit_bias: expected tokens 0 to 9, got 15"):
        sampler(torch.zeros(3, 10))
    assert sampler(torch.zeros(2, 20)).tolist() == [15, 15]
    assert sampler.state[:, 2].tolist() == [2, 2]
