"""A captured training step against the loop that it stands for; graphs are played, for a CPU has none."""

import gc
import weakref

import aegis
import pytest
import torch
from aegis.runtime import graphed_step
from torch import nn
from training_step import assert_like_the_loop, assert_same_state, loader, loop, loss, model_and_optimizer, plain_step

pytestmark = pytest.mark.usefixtures("one_thread")


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
