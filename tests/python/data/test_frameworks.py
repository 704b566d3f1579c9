"""Training frameworks over our loader and over torch's under patch_torch(): the losses of torch's own DataLoader."""

import logging

import aegis
import pytest
import torch
from aegis.data import patch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

EPOCHS, SAMPLES, BATCH = 2, 26, 4
STEPS = EPOCHS * -(-SAMPLES // BATCH)


pytestmark = pytest.mark.usefixtures("one_thread")


def table():
    x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True))


class Named(Dataset):
    """Samples with the names of the model's arguments."""

    def __init__(self):
        self.rows = table()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        x, y = self.rows[i]
        return {"x": x, "labels": y}


def make_model():
    torch.manual_seed(2)
    return nn.Linear(6, 1)


def with_and_without(train, path):
    """The losses of ``train()`` over torch's loader, which those under a patch are; all of them came on ``path``."""
    expected = train()
    assert len(expected) == STEPS
    assert len(set(expected)) == STEPS
    before = patch.stats()
    with aegis.patch_torch():
        assert train() == expected
    assert patch.stats() == {**before, path: before[path] + STEPS}
    return expected


# --- Accelerate ------------------------------------------------------------------------------------------------------


@pytest.fixture
def accelerate():
    module = pytest.importorskip("accelerate", reason="accelerate is not installed")
    module.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield module
    module.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [DataLoader, aegis.FlatArenaDataLoader])
def test_accelerate(accelerate, kind, workers):
    def train():
        accelerator = accelerate.Accelerator(cpu=True)
        model = make_model()
        loader = kind(table(), BATCH, shuffle=True, num_workers=workers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        losses = []
        for _ in range(EPOCHS):
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        prepared.append(loader.base_dataloader)
        return losses

    prepared = []
    with_and_without(train, "native")
    assert [patch.delivered(loader)["native"] for loader in prepared] == [0, STEPS]


# --- Lightning -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fit(tmp_path):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.losses = make_model(), []

        def training_step(self, batch, _):
            x, y = batch
            loss = nn.functional.mse_loss(self.model(x), y)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def run(loader):
        module = Module()
        trainer = lightning.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        torch.manual_seed(3)
        trainer.fit(module, loader)
        return module.losses

    return run


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*torch.jit", "ignore::DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_lightning(fit, workers):
    options = {"batch_size": BATCH, "shuffle": True, "num_workers": workers}
    expected = with_and_without(lambda: fit(DataLoader(table(), **options)), "native")
    loader = aegis.FlatArenaDataLoader(table(), **options)
    assert fit(loader) == expected
    assert loader.stats()["batches"] == STEPS


# --- transformers ----------------------------------------------------------------------------------------------------


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = make_model()

    def forward(self, x, labels):
        y = self.model(x)
        return {"loss": nn.functional.mse_loss(y, labels), "logits": y}


@pytest.mark.parametrize(("workers", "collator"), [(0, default_collate), (2, None)])
def test_transformers(accelerate, tmp_path, workers, collator):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    class Given(transformers.Trainer):
        kind = DataLoader

        def get_train_dataloader(self):
            self.loader = self.kind(
                self.train_dataset,
                self.args.train_batch_size,
                sampler=self._get_train_sampler(),
                collate_fn=self.data_collator,
                num_workers=workers,
            )
            return self.loader

    class GivenOurs(Given):
        kind = aegis.FlatArenaDataLoader

    def train(kind=transformers.Trainer):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH,
            dataloader_num_workers=workers,
            learning_rate=0.01,
            optim="sgd",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
        )
        trainer = kind(model=Regression(), args=arguments, train_dataset=Named(), data_collator=collator)
        trainer.train()
        trainers.append(trainer)
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    trainers = []
    with_and_without(train, "arena")
    assert train(GivenOurs) == train(Given)
    trainers.pop()
    stats = trainers[-1].loader.stats()
    assert stats["slot_batches"] + stats["small_batches"] == STEPS
