"""Matched arms: the same weights and batches, what they may differ in, and what the report says of that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from aegis.cli import main
from aegis.evidence import experiment, read_telemetry, verify_receipt
from aegis.evidence.arm import Arm, parse_arm
from aegis.evidence.experiment_figures import Run, arm_figures, band, measure, paired_speed
from aegis.evidence.experiment_presets import EXPERIMENTS, Claim
from aegis.evidence.training import ArmTraining, arm_loader
from aegis.train.settings import Settings

CPU = torch.device("cpu")


def test_arms_get_the_same_batches_and_the_report_names_claim_and_measure(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    claim = Claim("+0.36 %", "throughput", "audited", "torch", "audited run over the stock loader")
    result = experiment(
        settings(),
        out,
        [Arm("torch", loader="torch"), Arm("audited", audit="on")],
        claims=[claim],
        steps=6,
        seeds=[4],
        warmup=2,
    )
    assert result.seeds == [4]
    assert result.band is None
    assert result.same_batches
    tables = [read_telemetry(out / f"telemetry-{name}-seed4.csv") for name in ("torch", "audited")]
    assert tables[0]["loss"].tolist() == tables[1]["loss"].tolist()
    assert len(tables[0]["loss"]) == 6
    assert result.arms["audited"].loss_difference == [0.0]
    assert result.arms["audited"].divergence == 0.0
    assert np.load(out / "order-seed4.npy").shape == (12,)
    assert [check.detail for check in verify_receipt(out / "receipt-audited-seed4.json") if check.passed is False] == []
    report = (out / "report.md").read_text()
    assert "| +0.36 % |" in report
    assert "With a single seed there is no band" in report
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads((out / "experiment.json").read_text())
    assert document["claims"][0]["measured"] == result.claims[0][1]
    assert document["arms"]["audited"]["settings"]["audit"] == "on"


def losses(arm: Arm, settings: Settings, order: Path, steps: int = 5) -> list[float]:
    training = ArmTraining(arm, settings, device=CPU)
    loader = arm_loader(arm, settings, workers=0, device=CPU, order=order)
    batches = training.batches(loader, recorded=True)
    found = [training.step(batches)[1] for _ in range(steps)]
    if arm.master != "float32":
        for weight in training.model.parameters():
            assert torch.equal(weight, weight.to(torch.bfloat16).float())
    validation = training.validation_loss()
    assert validation is not None
    return [*found, validation]


def test_what_arms_differ_in_changes_the_losses_and_nothing_else_does(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    order = tmp_path / "order.npy"
    np.save(order, np.random.default_rng(0).integers(500, size=10))
    plain = losses(Arm("a"), settings(), order)
    same = [Arm("b", loader="torch"), Arm("c", audit="on")]
    for arm in same:
        assert losses(arm, settings(), order) == plain, arm
    seen = [plain]
    for changes in ({"dtype": "bfloat16"}, {"master": "nearest"}, {"master": "stochastic"}, {"master": "truncate"}):
        found = losses(Arm("d", **changes), settings(), order)
        assert found not in seen
        assert found == pytest.approx(plain, abs=0.3)
        assert losses(Arm("d", **changes), settings(), order) == found
        seen.append(found)
    # The first loss is before any update: rounded first weights are the same in all three.
    assert len({of_arm[0] for of_arm in seen[2:]}) == 1


def test_a_recorded_order_ends(settings: Callable[..., Settings], tmp_path: Path) -> None:
    order = tmp_path / "order.npy"
    np.save(order, np.arange(4))
    training = ArmTraining(Arm("a"), settings(), device=CPU)
    batches = training.batches(arm_loader(Arm("a"), settings(), workers=0, device=CPU, order=order), recorded=True)
    training.step(batches)
    training.step(batches)
    with pytest.raises(StopIteration):
        training.step(batches)


def test_ids_outside_of_the_vocabulary(settings: Callable[..., Settings], tmp_path: Path) -> None:
    order = tmp_path / "order.npy"
    np.save(order, np.arange(4))
    training = ArmTraining(Arm("a"), settings(vocab_size=40), device=CPU)
    batches = training.batches(arm_loader(Arm("a"), settings(), workers=0, device=CPU, order=order), recorded=True)
    with pytest.raises(ValueError, match=r"vocab_size: expected ids below 40, got \d+ in the data"):
        training.step(batches)


def run(seed: int, seconds: float, loss: float, slope: float = 0.0) -> Run:
    count = 30
    table = {
        "step": np.arange(1.0, count + 1),
        "step_seconds": np.full(count, seconds),
        "wait_seconds": np.zeros(count),
        "tokens": np.full(count, 50.0),
        "loss": loss + slope * np.arange(count),
        "minor_faults": np.full(count, 2.0),
        "rss_anon_bytes": np.full(count, np.nan),
        "gpu_reserved_bytes": np.r_[np.full(count // 2, np.nan), np.linspace(5e9, 6e9, count - count // 2)],
    }
    return Run(seed, table, 1e9, loss, 10)


def test_figures_are_paired_by_seed() -> None:
    first, other = [run(0, 0.1, 2.0), run(1, 0.2, 3.0)], [run(0, 0.05, 2.5), run(1, 0.1, 2.9)]
    found = arm_figures(other, first)
    assert found.speed == pytest.approx([1.0, 1.0])
    assert found.paired_speed == pytest.approx((1.0, 1.0, 1.0))
    assert found.loss_difference == pytest.approx([0.5, -0.1])
    assert found.divergence == pytest.approx(0.3)
    assert found.minor_faults_per_second == pytest.approx(2.0 / 0.075)
    assert found.gpu_reserved == pytest.approx(6e9)
    assert found.gpu_reserved_drift == pytest.approx(1e9)
    assert found.rss_drift.samples == 0
    assert band(first) == pytest.approx(0.5**0.5)
    assert band(first[:1]) is None


@pytest.mark.parametrize("alike", [0.0, 0.9])
def test_intervals_of_equal_arms_hold_zero_also_where_slow_steps_follow_each_other(alike: float) -> None:
    generator = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        runs = []
        for seed in range(2):
            noise = generator.normal(size=190)
            for i in range(1, 190):
                noise[i] += alike * noise[i - 1]
            runs.append(run(seed, 0.1, 2.0))
            runs[-1].columns["step_seconds"] = 0.1 * np.exp(0.1 * noise)
        first = [run(seed, 0.1, 2.0) for seed in range(2)]
        for each in first:
            each.columns["step_seconds"] = np.full(190, 0.1)
        _, low, high = paired_speed(runs, first)
        covered += low <= 0.0 <= high
    assert covered / 200 >= 0.9


def test_divergence_of_two_arms_from_the_first() -> None:
    runs = {"zero": [run(0, 0.1, 2.0)], "near": [run(0, 0.1, 2.1)], "far": [run(0, 0.1, 1.0)]}
    claim = Claim("-70 %", "divergence", "near", "far", "")
    assert measure(claim, runs, runs["zero"]) == pytest.approx([-0.9] * 3)
    assert measure(claim, {**runs, "far": runs["zero"]}, runs["zero"]) == []


def test_presets_compare_arms_that_they_have() -> None:
    assert set(EXPERIMENTS) == {"audited", "matched-bf16", "nearest-even"}
    for preset in EXPERIMENTS.values():
        names = {arm.name for arm in preset.arms}
        assert len(names) == len(preset.arms)
        for claim in preset.claims:
            assert {claim.arm, claim.against} <= names
        for arm in preset.arms:
            arm.check(CPU)


def test_arms_are_read_from_the_command_line() -> None:
    default = Arm("default")
    assert parse_arm("fast:loader=torch,dtype=bfloat16", default) == Arm("fast", loader="torch", dtype="bfloat16")
    assert parse_arm("audit=on", default) == Arm("audit-on", audit="on")
    assert parse_arm("", default) == default
    for text, message in {
        "colour=red": "arm: expected KEY=VALUE with a key of loader, audit, .*, got 'colour=red'",
        "name=x": "arm: expected KEY=VALUE",
        "loader": "arm: expected KEY=VALUE .* got 'loader'",
        "loader=numpy": "loader: expected one of aegis, torch, got 'numpy'",
        "../x:audit=on": "name: expected letters, digits, dots, dashes and underscores, got '../x'",
    }.items():
        with pytest.raises(ValueError, match=message):
            parse_arm(text, default)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arm", "audit=off", "--arm", "tf32=on"], "tf32: expected off on cpu, which has no TF32, got on"),
        (["--arm", "audit=off", "--arm", "step=graphed"], "step: expected eager or compiled on cpu, got graphed"),
        (["--arm", "audit=off"], "arms: expected at least two, with different names, got audit-off"),
        (["--arm", "audit=off", "--arm", "audit=off"], "arms: expected at least two, with different names"),
        (["--preset", "audited", "--seeds", "0"], "--seeds: expected at least 1, got 0"),
        (["--preset", "audited", "--steps", "1"], "steps: expected at least 2, got 1"),
        (["--preset", "audited", "--turn", "0"], "turn: expected at least 1, got 0"),
    ],
)
def test_bad_input_is_told_in_one_line(
    arguments: list[str], message: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["experiment", "--device", "cpu", "--text", str(text), "--out", str(tmp_path / "out")]
    assert main([*base, *arguments]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("aegis experiment: error: ")
    assert message in error
