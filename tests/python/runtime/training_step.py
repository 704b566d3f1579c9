"""A small training loop, for steps to be compared with, and graphs that a CPU can play."""

import aegis
import torch
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
