"""A loader's state in the checkpoints of Accelerate, Lightning and torch.distributed."""

import logging

import aegis
import corpora
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn


@pytest.fixture
def loaders(tmp_path):
    """Makes loaders of one mixture."""
    data = corpora.mixture(tmp_path, samples=57)
    made = []

    def make():
        made.append(aegis.FlatArenaDataLoader(data, 4, shuffle=True, seed=3, num_workers=1))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def whole(loader, epochs=2):
    return [corpora.rows(batch) for _ in range(epochs) for batch in loader]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_distributed_checkpoint_of_one_process(loaders, tmp_path):
    loader = loaders()
    expected = whole(loaders())
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    dcp.save({"loader": loader, "model": nn.Linear(2, 2).state_dict()}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    resumed = loaders()
    dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert [corpora.rows(batch) for batch in resumed] == expected[5:15]


def test_accelerate_saves_and_loads_the_registered_loader(loaders, tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True)
    loader = loaders()
    accelerator.register_for_checkpointing(loader)
    expected = whole(loaders())
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    accelerator.save_state(str(tmp_path / "accelerate"))
    rest = [corpora.rows(batch) for batch in iterator]
    accelerator.load_state(str(tmp_path / "accelerate"))
    assert [corpora.rows(batch) for batch in loader] == rest == expected[7:15]
    assert [corpora.rows(batch) for batch in loader] == expected[15:]
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.filterwarnings("ignore")
def test_lightning_goes_on_in_the_middle_of_an_epoch(loaders, tmp_path):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.seen = nn.Linear(16, 1), []

        def training_step(self, batch, _):
            self.seen.append(corpora.rows(batch))
            return self.model(batch[0] / 30_000).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(steps, **arguments):
        module = Module()
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, loaders(), **arguments)
        return module.seen, trainer

    expected = whole(loaders())
    head, trainer = fit(6)
    trainer.save_checkpoint(tmp_path / "lightning.ckpt")
    rest, _ = fit(25, ckpt_path=tmp_path / "lightning.ckpt")
    assert head == expected[:6]
    assert rest == expected[6:25]
