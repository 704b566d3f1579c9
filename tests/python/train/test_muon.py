"""Muon and AdamW as one optimizer of a trainer."""

from copy import deepcopy
from itertools import repeat

import torch
from aegis.train.model import MicroGPT, MicroGPTConfig
from aegis.train.muon import MuonWithAdamW
from aegis.train.trainer import TrainConfig, Trainer

CONFIG = TrainConfig(steps=30, batch_size=4, lr=0.02, last=0.0)
TEXT = torch.arange(9).repeat(4, 1)


def model():
    torch.manual_seed(0)
    return MicroGPT(MicroGPTConfig(vocab_size=16, block_size=8, layers=1, heads=2, width=16))


def trainer(made):
    return Trainer(made, CONFIG, vocab_size=16, device=torch.device("cpu"), optimizer=MuonWithAdamW)


def test_each_weight_has_one_of_the_two():
    made = model()
    optimizer = MuonWithAdamW(made, CONFIG)
    kinds = [{id(w) for w in group["params"]} for group in optimizer.param_groups]
    assert [len(kind) for kind in kinds] == [4, 5]
    names = {name for name, weight in made.named_parameters() if id(weight) in kinds[0]}
    assert names == {f"blocks.0.{name}.weight" for name in ("attention.qkv", "attention.out", "mlp_in", "mlp_out")}
    assert kinds[0] | kinds[1] == {id(weight) for weight in made.parameters()}


def test_matrices_are_moved_in_all_directions_alike():
    made = model()
    matrix = made.blocks[0].mlp_in.weight
    before = matrix.detach().clone()
    trainer(made).advance(repeat([TEXT[:, :-1], TEXT[:, 1:]]))
    moved = torch.linalg.svdvals(matrix.detach() - before)
    assert moved.max() / moved.min() < 10  # AdamW's first step is one of signs: of few directions here


def test_learns_and_goes_on_from_its_state():
    batches = repeat([TEXT[:, :-1], TEXT[:, 1:]])
    first, second = trainer(model()), trainer(model())
    for _ in range(10):
        first.advance(batches)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(deepcopy(first.optimizer.state_dict()))
    second.records[:] = first.records
    for _ in range(20):
        ours, theirs = first.advance(batches), second.advance(batches)
        assert ours.loss == theirs.loss
        assert ours.lr == theirs.lr == first.optimizer.param_groups[0]["lr"] == first.optimizer.param_groups[-1]["lr"]
    assert first.records[-1].loss < 0.3 < first.records[0].loss
