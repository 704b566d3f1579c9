"""Several processes: shares of the order, tails, and that all of them read the same data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import aegis
import corpora
import pytest
import torch

HERE = Path(__file__).parent


def torchrun(mode, folder):
    """What each of two processes has written."""
    command = [
        *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *(str(HERE / "rank_script.py"), mode, str(folder)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def merged(results, name):
    """Rows of all ranks in the global order."""
    return [row for step in zip(*(result[name] for result in results), strict=True) for own in step for row in own]


def test_ddp_and_fsdp_see_the_global_order_and_go_on_from_a_distributed_checkpoint_case31_case35(tmp_path):
    results = torchrun("save_and_resume", tmp_path)
    (tmp_path / "whole").mkdir()
    data = corpora.mixture(tmp_path / "whole", samples=61)
    loader = aegis.FlatArenaDataLoader(data, 1, shuffle=True, seed=3)
    whole = [x[0, 0].item() for x, _ in loader]
    head = merged(results, "head")
    assert head == whole[:32]
    assert merged(results, "rest") == merged(results, "resumed") == whole[32:60]
    assert [result["length"] for result in results] == [8, 8]


def test_other_data_or_weights_on_another_rank_are_refused_on_all_of_them_case38(tmp_path):
    first, second = (result["errors"] for result in torchrun("differ", tmp_path))
    assert first[:3] == second[:3]
    assert first[0].startswith("samples: the ranks read different data: expected 93, as on rank 0, got 106 on rank 1")
    assert first[1].startswith("mixture: the ranks read different data: expected {'weights': [3, 1, 2]")
    assert first[2] == first[1]  # also when it is tried again
    assert second[3].startswith(f"{tmp_path}/1/cut.bin: expected 6000 bytes, found 100")
    assert first[3] == f"rank 1 cannot read its data: {second[3]}"


def test_two_private_disks_need_no_cache_files_case55(tmp_path):
    states, files = [], []
    for node in ("0", "1"):
        (tmp_path / node).mkdir()
        loader = aegis.FlatArenaDataLoader(corpora.mixture(tmp_path / node), 4, shuffle=True, seed=3, num_workers=1)
        next(iter(loader))
        states.append(loader.state_dict())
        files.append(sorted(os.listdir(tmp_path / node)))
    assert states[0] == states[1]
    assert files == [["a.bin", "b.bin", "c.bin"]] * 2


@pytest.mark.parametrize("tail", ["pad", "wrap"])
@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("threads", [0, 1])
def test_tails_fill_the_last_batch_case35_case36(tmp_path, tail, world_size, threads):
    data = corpora.dataset(tmp_path, tokens=160, layout="packed", fields=("valid", "cu_seqlens"))
    assert len(data) == 10

    def loader(rank, **arguments):
        return aegis.FlatArenaDataLoader(
            data, 3, shuffle=True, seed=1, rank=rank, world_size=world_size, tail=tail, num_workers=threads, **arguments
        )

    steps = list(zip(*(loader(rank) for rank in range(world_size)), strict=True))
    assert len(steps) == len(loader(0)) == (4 if world_size == 1 else 1)
    batches = [batch for step in steps for batch in step]
    assert {len(batch.inputs) for batch in batches} == {3}
    rows = [row for batch in batches for row in corpora.rows(batch)]
    valid = torch.cat([batch.valid for batch in batches]).tolist()
    assert len(set(rows[:10])) == 10
    assert len(rows) == 12
    if tail == "wrap":
        assert rows[10:] == rows[:2]
        assert all(valid)
    else:
        assert valid == [True] * 10 + [False] * 2
        last = batches[-1]
        assert (last.targets[~last.valid] == -100).all()
        assert last.cu_seqlens[-1] == 48
    python = [batch for rank in range(world_size) for batch in loader(rank, collate_fn=collate)]
    ordered = [batch for rank in range(world_size) for batch in loader(rank)]
    for batch, other in zip(ordered, python, strict=True):
        assert all(torch.equal(batch[name], other[name]) for name in batch)


def collate(samples):
    return torch.utils.data.default_collate(samples)


def test_padding_of_plain_windows_and_of_mixtures_case36(tmp_path):
    path, _ = corpora.corpus(tmp_path, "plain", 160)
    for data in (aegis.TokenDataset(path, 16, dtype="int32"), corpora.mixture(tmp_path, samples=9)):
        x, y = list(aegis.FlatArenaDataLoader(data, 4, seed=1, tail="pad"))[-1]
        assert (x[1:] == 0).all()
        assert (y[1:] == -100).all()
        assert (y[0] != -100).any()


def test_a_subset_is_shared_between_ranks_case39(tmp_path):
    data = corpora.dataset(tmp_path, layout="packed")
    chosen = list(range(3, 60, 7))
    subset = torch.utils.data.Subset(data, chosen)
    ranks = [aegis.FlatArenaDataLoader(subset, 2, shuffle=True, seed=4, rank=rank, world_size=3) for rank in range(3)]
    seen = [row for loader in ranks for batch in loader for row in corpora.rows(batch)]
    assert sorted(seen) == sorted(data[i][0].numpy().tobytes() for i in chosen)


def test_unequal_files_have_a_length_that_is_known_at_once_case42(tmp_path):
    paths = []
    for at, tokens in enumerate((17, 400, 90, 33)):
        paths.append(corpora.corpus(tmp_path, f"shard{at}", tokens)[0])
    data = aegis.TokenDataset(paths, 16, dtype="int32")
    ranks = [aegis.FlatArenaDataLoader(data, 3, seed=1, rank=rank, world_size=2, num_workers=1) for rank in range(2)]
    assert [len(list(loader)) for loader in ranks] == [len(loader) for loader in ranks] == [6, 6]


def test_bad_tails_are_named(tmp_path):
    data = corpora.dataset(tmp_path)
    table = torch.utils.data.TensorDataset(torch.arange(10))
    for arguments, message in (
        ({"seed": 1, "tail": "keep"}, "tail: expected None, 'pad' or 'wrap', got 'keep'"),
        ({"seed": 1, "tail": "pad", "drop_last": True}, "drop_last: expected False with tail='pad'"),
        ({"tail": "pad"}, "tail: expected seed= beside it"),
    ):
        with pytest.raises(ValueError, match=message):
            aegis.FlatArenaDataLoader(data, 4, **arguments)
    with pytest.raises(ValueError, match="tail: expected 'pad' with token data alone, got a TensorDataset"):
        aegis.FlatArenaDataLoader(table, 4, seed=1, tail="pad")
    wrapped = [x.tolist() for (x,) in aegis.FlatArenaDataLoader(table, 4, seed=1, tail="wrap")]
    assert wrapped == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
