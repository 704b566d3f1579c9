"""What may change between steps once a training step is captured, and what is an error; graphs are played."""

import copy

import aegis
import pytest
import torch
from torch import nn
from training_step import assert_like_the_loop, loader, loop, loss, model_and_optimizer, plain_step

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("change", ["rate", "eval"])
@pytest.mark.usefixtures("any_optimizer")
def test_what_the_graph_has_frozen_may_not_change(path, graphs, change):
    model, optimizer = model_and_optimizer()
    step = aegis.GraphedTrainStep(model, loss, optimizer, [], warmup=1)
    batch = next(iter(loader(path)))
    step(batch)
    step(batch)
    if change == "rate":
        optimizer.param_groups[0]["lr"] = 0.5
    else:
        model.eval()
    match = r"\['lr'\]: expected 0.01, got 0.5" if change == "rate" else "model.training: expected True, got False"
    weights = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=match):
        step(batch)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


@pytest.mark.usefixtures("any_optimizer")
def test_a_rate_that_is_a_tensor_may_change(path, graphs):
    model, optimizer = model_and_optimizer("tensor rate")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: 1 / (1 + at))
    rates = []
    for _ in aegis.GraphedTrainStep(model, loss, optimizer, loader(path), warmup=1):
        schedule.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    assert len(set(rates)) == 12


@pytest.mark.parametrize("warmup", [1, 3])
@pytest.mark.usefixtures("any_optimizer")
def test_state_that_is_loaded_makes_a_new_graph(path, graphs, warmup):
    def saved(model, optimizer):
        # torch's AdamW keeps its step count on the CPU, and loads that as it is.
        return {name: value.clone() for name, value in model.state_dict().items()}, copy.deepcopy(
            optimizer.state_dict()
        )

    found = []
    for ours in (True, False):
        model, optimizer = model_and_optimizer()
        step = aegis.GraphedTrainStep(model, loss, optimizer, [], warmup=warmup)
        call = step if ours else lambda batch, given=(model, optimizer): plain_step(*given, *batch)
        losses, kept = [], None
        for at, batch in enumerate(loader(path)):
            if at == 2:
                kept = saved(model, optimizer)
            if at == 7:
                model.load_state_dict(kept[0])
                optimizer.load_state_dict(kept[1])
                assert not step.captured
            losses.append(call(batch))
        found.append(torch.stack(losses))
        assert step.captured is ours
    assert torch.equal(*found)
    assert (graphs.captured, graphs.warmed) == (2, warmup + 1)


class Wrapped(torch.optim.Optimizer):
    """As Accelerate wraps optimizers: its base's own __init__ is not called."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        self.optimizer.step(closure)

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state)


@pytest.mark.usefixtures("any_optimizer")
def test_state_that_a_wrapper_loads_makes_a_new_graph(path, graphs):
    model, optimizer = model_and_optimizer()
    wrapped = Wrapped(optimizer)
    step = aegis.GraphedTrainStep(model, loss, wrapped, [], warmup=1)
    batches = iter(loader(path))
    losses = [step(next(batches)) for _ in range(3)]
    assert step.captured
    wrapped.load_state_dict(optimizer.state_dict())
    assert not step.captured
    losses += [step(batch) for batch in batches]
    assert_like_the_loop(losses, model, loop(path, 1))


def change_rate(model, optimizer):
    optimizer.param_groups[0]["lr"] = torch.tensor(0.5)


def change_module(model, optimizer):
    model[2].eval()


def change_need(model, optimizer):
    model[1].weight.requires_grad_(False)


def change_place(model, optimizer):
    model[3].bias.data = model[3].bias.data.clone()


def add_group(model, optimizer):
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": torch.tensor(0.1)})


def add_parameter(model, optimizer):
    model[3].new = nn.Parameter(torch.zeros(1))


def add_module(model, optimizer):
    model.append(nn.Linear(50, 50))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (change_rate, r"param_groups\[0\]\['lr'\]: expected the tensor at .*, got the tensor at"),
        (change_module, r"model\.2\.training: expected True, got False, which the captured graph has frozen"),
        (change_need, r"model\.1\.weight\.requires_grad: expected True, got False"),
        (change_place, r"model\.3\.bias: expected memory at .*, got memory at"),
        (add_group, r"param_groups\[1\]\['.*'\]: expected None, got"),
        (add_module, r"model: expected the modules that it had, got others"),
        (add_parameter, r"model\.3: expected the parameters \['weight', 'bias'\], got \['weight', 'bias', 'new'\]"),
    ],
)
@pytest.mark.usefixtures("any_optimizer")
def test_what_a_graph_would_not_notice_is_an_error(path, graphs, change, match):
    model, optimizer = model_and_optimizer("tensor rate")
    step = aegis.GraphedTrainStep(model, loss, optimizer, [], warmup=1)
    batch = next(iter(loader(path)))
    step(batch)
    step(batch)
    step(batch)
    change(model, optimizer)
    weights = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=match):
        step(batch)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, _ = model_and_optimizer()

    def forward(self, inputs, targets, scale):
        return scale * loss(self.body(inputs), targets)


@pytest.mark.usefixtures("any_optimizer")
def test_numbers_and_names_of_a_batch_are_not_frozen(path, graphs):
    def losses(call):
        found = []
        for at, (x, y) in enumerate(loader(path, drop_last=True)):
            batch = {"inputs": x, "targets": y, "scale": 2.0 if at % 4 == 3 else 1.0}
            found.append(call(dict(reversed(batch.items())) if at % 5 == 4 else batch))
        return torch.stack(found)

    def plain(batch):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            value = model(**batch)
        value.backward()
        optimizer.step()
        return value.detach()

    model = Scaled()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    got = losses(aegis.GraphedTrainStep(model, None, optimizer, [], warmup=1))
    assert 0 < graphs.replayed < 9
    model = Scaled()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    assert torch.equal(got, losses(plain))
