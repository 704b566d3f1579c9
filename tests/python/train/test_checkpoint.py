from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from aegis.train.checkpoint import load_checkpoint, restore, save_checkpoint
from aegis.train.settings import Settings, make_loader, make_trainer
from aegis.train.trainer import endless, train

CPU = torch.device("cpu")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_gives_the_losses_of_an_uninterrupted_one(
    settings: Callable[..., Settings], tmp_path: Path, workers: int
) -> None:
    chosen = settings(steps=20, eval_every=5)
    whole = make_trainer(chosen, device=CPU)
    with make_loader("aegis", chosen, num_workers=workers, device=CPU) as loader:
        train(whole, endless(loader))

    path = tmp_path / "checkpoint.pt"
    first = make_trainer(chosen, device=CPU)
    with make_loader("aegis", chosen, num_workers=workers, device=CPU) as loader:
        train(first, endless(loader), stop=lambda: first.step == 7)
        save_checkpoint(path, first, vars(chosen), loader.state_dict())

    state = load_checkpoint(path)
    resumed = Settings.resume(state["settings"], {})
    second = make_trainer(resumed, device=CPU)
    with make_loader("aegis", resumed, num_workers=workers, device=CPU) as loader:
        restore(second, state)
        assert second.step == 7
        loader.load_state_dict(state["loader"])
        train(second, endless(loader))

    assert [r.loss.hex() for r in second.records] == [r.loss.hex() for r in whole.records]
    assert [r.val_loss.hex() for r in second.records] == [r.val_loss.hex() for r in whole.records]
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_records_come_back_with_their_types(settings: Callable[..., Settings], tmp_path: Path) -> None:
    chosen = settings(steps=3)
    trainer = make_trainer(chosen, device=CPU)
    with make_loader("aegis", chosen, num_workers=0, device=CPU) as loader:
        train(trainer, endless(loader))
    save_checkpoint(tmp_path / "c.pt", trainer, vars(chosen), {})
    again = make_trainer(chosen, device=CPU)
    restore(again, load_checkpoint(tmp_path / "c.pt"))
    assert [repr(record) for record in again.records] == [repr(record) for record in trainer.records]


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, ("evil",)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a checkpoint", pickle.dumps({"format": 1}, 2), pickle.dumps(Evil(), 2)],
    ids=["empty", "text", "pickle", "code"],
)
def test_a_file_that_is_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.pt: expected a checkpoint of aegis train, ") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_a_torch_file_of_another_kind_and_a_missing_one(tmp_path: Path) -> None:
    torch.save({"model": {}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt: expected a checkpoint of aegis train, format 2"):
        load_checkpoint(tmp_path / "other.pt")
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        load_checkpoint(tmp_path / "none.pt")


def test_settings_that_shape_the_losses_cannot_change(settings: Callable[..., Settings]) -> None:
    saved = vars(settings())
    assert Settings.resume(saved, {"steps": 99, "seed": None, "batch_size": 8}).steps == 99
    with pytest.raises(ValueError, match="--batch-size: expected 8 as in the checkpoint, got 16"):
        Settings.resume(saved, {"batch_size": 16})
