"""A training step captured on a GPU against the loop that it stands for.

Imports nothing beyond torch and pytest, so that it runs on GPU machines that have little else (tools/gpu_check.sh).
"""

import copy
from functools import partial

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


def plain_step(model, optimizer, batch):
    """The body of the loop that a step stands for."""
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
        value = loss(model(batch[0]), batch[1])
    value.backward()
    optimizer.step()
    return value.detach()


def assert_both_same(drive, make=model_and_optimizer):
    """``drive(call, model, optimizer)`` gives the same losses and leaves the same weights, by the step and the loop."""
    found = []
    for ours in (True, False):
        model, optimizer = make()
        step = aegis.GraphedTrainStep(model, loss, optimizer, [])
        losses = drive(step if ours else partial(plain_step, model, optimizer), model, optimizer)
        assert step.captured is ours
        found.append([torch.stack(losses), *model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_clipped_gradients_are_the_loop_s():
    def drive(call, model, optimizer):
        def clip(*_):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        optimizer.register_step_pre_hook(clip)
        return [call(batch) for _ in range(2) for batch in loader()]

    assert_both_same(drive)


def test_a_short_batch_first_and_an_error_change_nothing():
    def drive(call, model, optimizer):
        batches = list(loader())
        losses = [call(batches[-1])]
        for batch in batches:
            losses.append(call(batch))
            with pytest.raises(RuntimeError):
                call([batch[0][:, 1:], batch[1]])
        return losses

    assert_both_same(drive)


def test_state_that_is_loaded_makes_a_new_graph():
    def drive(call, model, optimizer):
        losses, kept = [], None
        for at, batch in enumerate(loader()):
            if at == 1:
                kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            if at == 6:
                model.load_state_dict(kept[0])
                optimizer.load_state_dict(kept[1])
            losses.append(call(batch))
        return losses

    assert_both_same(drive)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds one CUDA device")
def test_a_device_that_is_not_the_current_one():
    def make():
        model, _ = model_and_optimizer()
        model = model.to("cuda:1")
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)

    def drive(call, model, optimizer):
        return [call([tensor.to("cuda:1") for tensor in batch]) for batch in loader()]

    assert_both_same(drive, make)


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
