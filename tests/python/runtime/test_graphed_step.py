"""A captured training step against the loop that it stands for; graphs are played, for a CPU has none."""

import copy
import gc
import weakref

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


def plain_step(model, optimizer, x, y, autocast=True):
    """The body of the loop that a step stands for."""
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        value = loss(model(x), y)
    value.backward()
    optimizer.step()
    return value.detach()


def loop(path, epochs, kind="adamw", autocast=True):
    """The losses of the plain loop and the weights after it."""
    model, optimizer = model_and_optimizer(kind)
    batches = loader(path)
    losses = [plain_step(model, optimizer, x, y, autocast) for _ in range(epochs) for x, y in batches]
    return torch.stack(losses), model.state_dict()


def assert_same_state(one, other):
    """Of two optimizers, to the bit."""
    one, other = one.state_dict(), other.state_dict()
    assert one["param_groups"] == other["param_groups"]
    assert one["state"].keys() == other["state"].keys() != set()
    for of, values in one["state"].items():
        for name, value in values.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other["state"][of][name])), name


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


@pytest.mark.parametrize("played", [False, True])
@pytest.mark.usefixtures("any_optimizer")
def test_clipped_gradients_and_the_optimizer_s_state_are_the_loop_s(path, request, played):
    if played:
        request.getfixturevalue("graphs")
    found = []
    for ours in (True, False):
        model, optimizer = model_and_optimizer()
        norms = []

        def clip(*_, model=model, norms=norms):
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.2))

        optimizer.register_step_pre_hook(clip)
        if ours:
            losses = list(aegis.GraphedTrainStep(model, loss, optimizer, loader(path)))
        else:
            losses = [plain_step(model, optimizer, x, y) for x, y in loader(path)]
        found.append((torch.stack(losses), torch.stack(norms), model.state_dict(), optimizer))
    (losses, norms, weights, optimizer), (want, want_norms, want_weights, other) = found
    assert torch.equal(losses, want)
    assert norms.max() > 0.2
    assert torch.equal(norms, want_norms)
    assert all(torch.equal(weights[name], want_weights[name]) for name in weights)
    assert_same_state(optimizer, other)


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


@pytest.mark.usefixtures("any_optimizer")
def test_a_short_batch_that_comes_first_is_not_what_is_captured(path, graphs):
    model, optimizer = model_and_optimizer()
    step = aegis.GraphedTrainStep(model, loss, optimizer, [], warmup=2)
    batches = list(loader(path))
    batches = [batches[-1], *batches]
    losses = [step(batch) for batch in batches]
    assert (graphs.warmed, graphs.captured, graphs.replayed) == (3, 1, 9)
    model, optimizer = model_and_optimizer()
    want = [plain_step(model, optimizer, x, y) for x, y in batches]
    assert torch.equal(torch.stack(losses), torch.stack(want))


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


@pytest.mark.usefixtures("any_optimizer")
def test_a_dropped_step_is_not_kept_by_its_optimizer():
    model, optimizer = model_and_optimizer()
    step = aegis.GraphedTrainStep(model, loss, optimizer, [])
    seen = weakref.ref(step)
    del step
    gc.collect()
    assert seen() is None
    optimizer.load_state_dict(optimizer.state_dict())


def test_compiled_losses_are_the_loop_s_to_the_bit_where_kernels_are_the_same(path):
    model, optimizer = model_and_optimizer()
    step = aegis.GraphedTrainStep(model, loss, optimizer, loader(path), compile="eager")
    assert_like_the_loop(list(step), model, loop(path, 1))


@pytest.mark.skipif(not graphed_step._OWN_CACHE, reason="this torch counts compilations of all steps together")
def test_many_compiled_steps_in_one_process(path):
    x, y = next(iter(loader(path)))
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for _ in range(torch._dynamo.config.recompile_limit + 1):
            model, optimizer = model_and_optimizer("sgd")
            aegis.GraphedTrainStep(model, loss, optimizer, [], compile="eager")([x, y])


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
