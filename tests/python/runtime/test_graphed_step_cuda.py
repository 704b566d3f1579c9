"""A training step captured on a GPU against the loop that it stands for.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import aegis
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


def model_and_optimizer():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 50)).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.float(), targets)


def loader(**options):
    random = torch.Generator().manual_seed(1)
    dataset = TensorDataset(torch.randn(330, 32, generator=random), torch.randint(0, 50, (330,), generator=random))
    return aegis.FlatArenaDataLoader(dataset, 32, shuffle=True, seed=5, device="cuda", **options)


@pytest.mark.parametrize("reuse", [False, True])
def test_losses_and_weights_are_those_of_the_loop(reuse):
    model, optimizer = model_and_optimizer()
    want = []
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                value = loss(model(x), y)
            value.backward()
            optimizer.step()
            want.append(value.detach())
    weights = [parameter.clone() for parameter in model.parameters()]
    model, optimizer = model_and_optimizer()
    step = aegis.GraphedTrainStep(model, loss, optimizer, [])
    got = [step(batch) for _ in range(2) for batch in loader(num_workers=1, reuse=reuse)]
    assert step.captured
    assert torch.equal(torch.stack(got), torch.stack(want))
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
