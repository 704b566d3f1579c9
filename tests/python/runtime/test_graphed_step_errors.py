"""Training steps that fail, and those that are refused; graphs are played."""

import aegis
import pytest
import torch
from torch import nn
from training_step import loader, loss, model_and_optimizer, plain_step

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.usefixtures("any_optimizer")
def test_a_step_that_fails_is_no_step_of_the_warm_up(path, graphs):
    # Else the capture would come first to state that is made lazily, and a replay make it anew.
    model, optimizer = model_and_optimizer()
    fails = [True, True, False, False, True]

    def sometimes(logits, targets):
        if fails and fails.pop(0):
            raise ArithmeticError("loss")
        return loss(logits, targets)

    step = aegis.GraphedTrainStep(model, sometimes, optimizer, [], warmup=1)
    losses = []
    for batch in loader(path):
        try:
            losses.append(step(batch))
        except ArithmeticError:
            assert graphs.captured == (0 if len(losses) == 0 else 1)
    assert len(losses) == 12 - 3
    other, optimizer = model_and_optimizer()
    done = [at for at in range(12) if at not in (0, 1, 4)]
    want = [plain_step(other, optimizer, x, y) for at, (x, y) in enumerate(loader(path)) if at in done]
    assert torch.equal(torch.stack(losses), torch.stack(want))


@pytest.mark.usefixtures("any_optimizer")
def test_a_step_that_fails_beside_the_graph_leaves_its_gradients(path, graphs):
    model, optimizer = model_and_optimizer()

    def whole(logits, targets):
        if len(targets) < 8:
            raise ArithmeticError("loss")
        return loss(logits, targets)

    step = aegis.GraphedTrainStep(model, whole, optimizer, [], warmup=1)
    batches = list(loader(path))
    step(batches[0])
    step(batches[1])
    before = [parameter.grad for parameter in model.parameters()]
    with pytest.raises(ArithmeticError):
        step(batches[-1])
    assert all(a is b.grad for a, b in zip(before, model.parameters(), strict=True))


def test_batches_and_losses_that_are_none(path):
    model, optimizer = model_and_optimizer("sgd")
    weights = [parameter.clone() for parameter in model.parameters()]
    step = aegis.GraphedTrainStep(model, loss, optimizer, [])
    x, y = next(iter(loader(path)))
    for batch, got in (([x], "1 items"), ((x, y, y), "3 items"), (x, "a tensor")):
        with pytest.raises(ValueError, match=f"batch: expected inputs and targets for the loss, got {got}"):
            step(batch)
    step = aegis.GraphedTrainStep(model, lambda logits, targets: 1.0, optimizer, [])
    with pytest.raises(ValueError, match="loss: expected a scalar tensor, got a float"):
        step([x, y])
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_refusals(path, graphs):
    model, optimizer = model_and_optimizer()
    with pytest.raises(ValueError, match="got AdamW without capturable=True"):
        aegis.GraphedTrainStep(model, loss, optimizer, [])
    _, optimizer = model_and_optimizer("sgd")
    with pytest.raises(ValueError, match="warmup: expected at least 1, got 0"):
        aegis.GraphedTrainStep(model, loss, optimizer, [], warmup=0)
    with pytest.raises(ValueError, match="expected parameters on one device, got none"):
        aegis.GraphedTrainStep(nn.Identity(), loss, optimizer, [])
    step = aegis.GraphedTrainStep(model, lambda logits, targets: logits, optimizer, loader(path))
    with pytest.raises(ValueError, match=r"loss: expected a scalar, got shape \(8, 16, 50\)"):
        next(iter(step))
