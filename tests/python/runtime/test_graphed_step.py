"""A captured training step against the loop that it stands for; graphs are played, for a CPU has none."""

import aegis
import numpy as np
import pytest
import torch
from aegis.runtime import graphed_step
from torch import nn


class PlayedGraphs:
    """Captures nothing but the function, and calls it when the graph would run, always to the same tensor."""

    def __init__(self):
        self.warmed = self.captured = self.replayed = 0

    def warm(self, function):
        self.warmed += 1
        return function()

    def capture(self, function):
        self.captured += 1
        result = torch.full((), float("nan"))

        def replay():
            self.replayed += 1
            result.copy_(function())
            return result

        return replay


@pytest.fixture(autouse=True)
def one_thread():
    """These layers are too small to share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def graphs(monkeypatch):
    played = PlayedGraphs()
    monkeypatch.setattr(graphed_step, "_graphs_of", lambda device: played)
    return played


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    np.random.default_rng(0).integers(0, 50, 16 * 90 + 1, dtype=np.uint16).tofile(path)
    return path


def loader(path, **options):
    fields = ("valid",) if options.pop("fields", False) else ()
    dataset = aegis.TokenDataset(path, 16, dtype="uint16", fields=fields)
    return aegis.FlatArenaDataLoader(dataset, 8, shuffle=True, seed=5, **options)


def model_and_optimizer(kind="adamw"):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 50))
    if kind == "sgd":
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rate = torch.tensor(1e-2) if kind == "tensor rate" else 1e-2
    # A CPU has no capturable optimizers, and the played graphs need none.
    return model, torch.optim.AdamW(model.parameters(), lr=rate)


def loss(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def loop(path, epochs, kind="adamw", autocast=True):
    """The losses of the plain loop and the weights after it."""
    model, optimizer = model_and_optimizer(kind)
    losses = []
    batches = loader(path)
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                value = loss(model(x), y)
            value.backward()
            optimizer.step()
            losses.append(value.detach())
    return torch.stack(losses), model.state_dict()


def assert_like_the_loop(losses, model, want):
    assert torch.equal(torch.stack(losses), want[0])
    for name, value in model.state_dict().items():
        assert torch.equal(value, want[1][name]), name


@pytest.fixture
def any_optimizer(monkeypatch):
    monkeypatch.setattr(graphed_step, "_check_capturable", lambda optimizer: None)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "tensor rate"])
@pytest.mark.parametrize("autocast", [True, False])
def test_losses_and_weights_are_those_of_the_loop(path, kind, autocast):
    model, optimizer = model_and_optimizer(kind)
    step = aegis.GraphedTrainStep(model, loss, optimizer, loader(path, num_workers=1), autocast=autocast)
    losses = [value for _ in range(2) for value in step]
    assert len(losses) == 24
    assert not step.captured
    assert_like_the_loop(losses, model, loop(path, 2, kind, autocast))


@pytest.mark.parametrize("fields", [False, True])
@pytest.mark.usefixtures("any_optimizer")
def test_a_captured_step_is_the_loop_s(path, graphs, fields):
    model, optimizer = model_and_optimizer()
    step = aegis.GraphedTrainStep(model, loss, optimizer, loader(path, fields=fields))
    losses = [value for _ in range(2) for value in step]
    assert_like_the_loop(losses, model, loop(path, 2))
    # 90 windows in batches of 8: the last of each epoch has 2 rows and runs beside the graph.
    assert (graphs.warmed, graphs.captured, graphs.replayed) == (3, 1, 2 * 11 - 3)


@pytest.mark.usefixtures("any_optimizer")
def test_inputs_of_the_graph_stay_where_they_are(path, graphs):
    model, optimizer = model_and_optimizer()
    step = aegis.GraphedTrainStep(model, loss, optimizer, loader(path, drop_last=True), warmup=1)
    places = set()
    for _ in step:
        if step.captured:
            places.add(tuple(tensor.data_ptr() for tensor in step._inputs))
    assert len(places) == 1


@pytest.mark.usefixtures("any_optimizer")
def test_losses_handed_out_are_not_overwritten(path, graphs):
    model, optimizer = model_and_optimizer()
    step = aegis.GraphedTrainStep(model, loss, optimizer, loader(path, drop_last=True), warmup=1)
    held, at_once = [], []
    for value in step:
        held.append(value)
        at_once.append(value.item())
    assert [value.item() for value in held] == at_once
    assert len(set(at_once)) > 5


@pytest.mark.usefixtures("any_optimizer")
def test_gradients_of_the_graph_survive_a_batch_beside_it(path, graphs):
    model, optimizer = model_and_optimizer()
    step = aegis.GraphedTrainStep(model, loss, optimizer, [], warmup=1)
    batches = list(loader(path))
    step(batches[0])
    step(batches[1])
    before = [parameter.grad for parameter in model.parameters()]
    step(batches[-1])
    assert all(a is b.grad for a, b in zip(before, model.parameters(), strict=True))


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


def test_compiled_losses_are_close_to_the_loop_s(path):
    model, optimizer = model_and_optimizer("sgd")
    step = aegis.GraphedTrainStep(model, loss, optimizer, loader(path), compile="aot_eager")
    torch.testing.assert_close(torch.stack(list(step)), loop(path, 1, "sgd")[0], rtol=1e-3, atol=1e-3)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, _ = model_and_optimizer()

    def forward(self, inputs, targets, valid=None):
        return loss(self.body(inputs), targets)


@pytest.mark.parametrize("fields", [False, True])
def test_a_model_that_returns_its_loss(path, fields):
    model = Whole()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = list(aegis.GraphedTrainStep(model, None, optimizer, loader(path, fields=fields)))
    assert torch.equal(torch.stack(losses), loop(path, 1)[0])


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
