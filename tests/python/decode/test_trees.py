"""SpeculativeFastRunner with trees gives what the target alone gives, whatever the draft."""

import itertools

import aegis
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

import tiny_models
from aegis.decode import EarlyExit, FusedLogitsSampler, PromptLookup, SpeculativeFastRunner, TokenTree
from aegis.decode.tree_drafts import LookupBranches, TreeProposal
from speculation import TARGET, another, assert_texts_follow_the_law, run, run_on, small_models

NEW = 20


@pytest.fixture(scope="module")
def llama():
    return tiny_models.make("llama")


class Scripted:
    """Branches whose node ``right[d]`` of depth d + 1 is what these texts have there; all others are wrong, and so is
    that one from depth ``until`` on."""

    def __init__(self, texts, right, until):
        self.texts, self.right, self.until = texts, right, until

    def propose(self, tree, first, text, lengths, state):
        tokens = torch.zeros(len(lengths), len(tree), dtype=torch.int64)
        for row, length in enumerate(lengths):
            for node, depth in enumerate(tree.depths):
                mine = int(self.texts[first + row, length + depth - 1])
                good = depth <= self.until and tree.children(tree.parents[node]).index(node) == self.right[depth - 1]
                tokens[row, node] = mine if good else (mine + 1 + node) % tiny_models.VOCABULARY
        return TreeProposal([tree], tokens, None)

    def keep(self, first, lengths, nodes):
        pass


# --- greedy ------------------------------------------------------------------------------------------------------


KINDS = ["same", "random", "exit", "lookup"]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (family, kind)
        for family in tiny_models.FAMILIES
        for kind in (KINDS if family in ("llama", "gemma3") else KINDS[:1])
    ],
)
def test_greedy_tokens_are_the_targets_own_case1(family, kind):
    model = tiny_models.make(family)
    draft = {"same": model, "random": None, "exit": EarlyExit(1), "lookup": PromptLookup()}[kind]
    draft = another(family) if kind == "random" else draft
    ids, mask = tiny_models.padded(3)
    options = {"attention_mask": mask, "max_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": [3, 4]}
    want = model.generate(ids, do_sample=False, **options)
    runner = SpeculativeFastRunner(model, draft, batch_size=3, max_cache_len=60, tree=(3, 2, 1))
    assert torch.equal(aegis.generate(model, ids, runner=runner, do_sample=False, **options), want)
    if kind == "same":
        assert runner.stats()["acceptance_rate"] > 0.95, "the draft sees what the target sees"


@pytest.mark.parametrize("until", range(4))
@pytest.mark.parametrize("right", [(0, 0, 0), (2, 1, 1), (1, 0, 1)], ids=str)
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_accepts_up_to_each_depth_in_every_branch_case43(family, until, right):
    """A draft that is always wrong among them. Behind a window that wraps, what was moved is read again."""
    model = tiny_models.make(family)
    ids = tiny_models.prompts(2)
    want = model.generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=0)
    with SpeculativeFastRunner(model, None, batch_size=2, max_cache_len=64, tree=(3, 2, 2)) as runner:
        runner._tree.branches = Scripted(want, right, until)
        runner.prefill(ids)
        before = [t.data_ptr() for layer in runner.cache.layers for t in (layer.keys, layer.values)]
        lengths = runner.lengths
        for _ in range(6):
            assert runner.step().counts == [until + 1] * 2
            lengths = [length + until + 1 for length in lengths]
            assert runner.lengths == lengths
            assert runner.cache.row_lengths == [length - 1 for length in lengths]
            for row in range(2):
                assert torch.equal(runner.text(row), want[row, : lengths[row]])
        assert before == [t.data_ptr() for layer in runner.cache.layers for t in (layer.keys, layer.values)]
    stats = runner.stats()
    assert stats["acceptance_rate"] == until / 3
    assert stats["tokens_per_pass"] == until + 1
    assert stats["nodes_per_pass"] == 3 + 6 + 12


def test_rows_accept_different_numbers_case2(llama):
    ids, mask = tiny_models.padded(3)
    want = llama.generate(ids, attention_mask=mask, max_new_tokens=40, do_sample=False, pad_token_id=0)
    texts = want.clone()
    texts[1] = 0
    texts[2, 15::3] = 0
    with SpeculativeFastRunner(llama, None, batch_size=3, max_cache_len=80, tree=(2, 2, 1)) as runner:
        runner._tree.branches = Scripted(texts, (1, 1, 0), 3)
        runner.prefill(ids, mask)
        for _ in range(6):
            assert runner.step().counts[:2] == [4, 1]
        for row in range(3):
            assert torch.equal(runner.text(row), want[row, : runner.lengths[row]])


def test_a_tree_of_any_shape_is_taken_level_by_level(llama):
    ids = tiny_models.prompts(1)
    want = llama.generate(ids, max_new_tokens=NEW, do_sample=False)
    for parents in ([-1], [-1, 0, 1, -1, 3, 0], [-1, *range(62)], [-1] * 64):
        with SpeculativeFastRunner(llama, llama, max_cache_len=96, tree=TokenTree(parents)) as runner:
            assert torch.equal(run(runner, ids, new=NEW), want)
            assert runner.stats()["acceptance_rate"] == 1


def test_a_wider_tree_keeps_more(llama):
    """Of a draft that is often wrong, but seldom by much."""
    ids = tiny_models.prompts(4)
    draft = tiny_models.make("llama")
    with torch.no_grad():
        noise = torch.randn(draft.lm_head.weight.shape, generator=torch.Generator().manual_seed(1))
        draft.lm_head.weight.add_(noise * 0.1)
    kept = []
    for tree in ((1, 1, 1), (2, 2, 1), (6, 3, 1)):
        with SpeculativeFastRunner(llama, draft, batch_size=4, max_cache_len=80, tree=tree) as runner:
            run(runner, ids, new=30)
        kept.append(runner.stats()["tokens_per_pass"])
    assert 1.2 < kept[0] < kept[1] < kept[2]


# --- sampled -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 1}], ids=str)
def test_with_a_greedy_draft_sampled_tokens_are_those_of_generate(llama, options):
    """The target's own draws decide, each by the path before it, so a seed means the same with and without a tree."""
    ids, mask = tiny_models.padded(3)
    options = {"attention_mask": mask, "max_new_tokens": NEW, "pad_token_id": 0, "top_k": 20, "seed": 3, **options}
    want = aegis.generate(llama, ids, **options)
    greedy = FusedLogitsSampler(do_sample=False)
    for draft in (llama, PromptLookup(2)):
        runner = SpeculativeFastRunner(
            llama, draft, batch_size=3, max_cache_len=60, draft_sampler=greedy, tree=(3, 2, 1)
        )
        assert torch.equal(aegis.generate(llama, ids, runner=runner, **options), want)


@pytest.mark.parametrize("options", [{"do_sample": False}, {"temperature": 0.7}], ids=["greedy", "drawn"])
def test_a_draft_that_is_the_target_is_always_right_whatever_its_settings(llama, options):
    """Penalties are of the path before each guess, to draft and target alike."""
    sampler = FusedLogitsSampler(repetition_penalty=1.5, frequency_penalty=0.5, seed=2, **options)
    ids = tiny_models.prompts(2)
    with SpeculativeFastRunner(
        llama, llama, batch_size=2, max_cache_len=60, sampler=sampler, draft_sampler=sampler, tree=(2, 2, 2)
    ) as runner:
        run(runner, ids, new=15)
        assert runner.stats()["acceptance_rate"] > 0.95


@pytest.mark.parametrize(
    ("rows", "settings", "tree"),
    [
        (20_000, None, (2, 2)),
        (100_000, {"temperature": 1.5, "top_k": 3}, TokenTree([-1, -1, -1, -1, 0, 0, 1])),  # the fourth token is none
    ],
    ids=["as the target", "own settings"],
)
def test_sampled_texts_follow_the_targets_law_case37_case38(rows, settings, tree):
    """χ² of texts against their exact probabilities."""
    target, draft = small_models(4)
    runner = SpeculativeFastRunner(
        target,
        draft,
        batch_size=rows,
        max_cache_len=12,
        sampler=FusedLogitsSampler(**TARGET, seed=11),
        draft_sampler=FusedLogitsSampler(**settings) if settings else None,
        tree=tree,
    )
    assert_texts_follow_the_law(runner, target, rows, 3)


def test_a_rows_tokens_do_not_depend_on_its_mates(llama):
    ids, draft = tiny_models.prompts(3), another("llama")
    options = {"max_new_tokens": 10, "pad_token_id": 0, "temperature": 0.7}
    runner = SpeculativeFastRunner(llama, draft, batch_size=3, max_cache_len=60, tree=(2, 2))
    alone = [aegis.generate(llama, ids[row : row + 1], seed=[row], runner=runner, **options) for row in range(3)]
    together = aegis.generate(llama, ids, seed=[0, 1, 2], runner=runner, **options)
    # near the end, paths are shorter behind the longest row: draws are then used otherwise
    assert torch.equal(together[:, :15], torch.cat(alone)[:, :15])


@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
@pytest.mark.parametrize("broken", [[3], list(range(97))], ids=len)
def test_scores_that_are_no_distribution_end_nothing(llama, value, broken):
    def breaks(input_ids, scores):
        return scores.index_fill_(1, torch.tensor(broken), value)

    runner = SpeculativeFastRunner(llama, another("llama"), batch_size=2, max_cache_len=60, tree=(2, 1))
    options = {"max_new_tokens": 6, "pad_token_id": 0, "seed": 1, "logits_processor": [breaks]}
    got = aegis.generate(llama, tiny_models.prompts(2), runner=runner, **options)
    assert ((got >= 0) & (got < tiny_models.VOCABULARY)).all()


# --- where it ends -----------------------------------------------------------------------------------------------


def test_stops_at_the_first_end_token_inside_a_path_case42(llama):
    ids = tiny_models.prompts(1)
    free = llama.generate(ids, max_new_tokens=NEW, do_sample=False)
    for at in range(10, 15):
        end = int(free[0, at])
        first = int((free[0, 9:] == end).nonzero()[0]) + 10
        with SpeculativeFastRunner(llama, None, max_cache_len=64, eos_token_id=end, tree=(2, 2, 2, 1)) as runner:
            runner._tree.branches = Scripted(free, (1, 1, 1, 0), 4)
            runner.prefill(ids)
            while not runner.ended[0]:
                runner.step()
            assert torch.equal(runner.text(0), free[0, :first])
            assert runner.cache.row_lengths == [first - 1]


@pytest.mark.parametrize(("new", "widths"), list(itertools.product([1, 2, 3, 5], [(2, 2, 2), (4,)])))
def test_never_more_tokens_than_asked_for(llama, new, widths):
    ids = tiny_models.prompts(2)
    want = aegis.generate(llama, ids, max_new_tokens=new, pad_token_id=0)
    for adaptive in (False, True):
        runner = SpeculativeFastRunner(llama, llama, batch_size=2, max_cache_len=30, tree=widths, adaptive=adaptive)
        assert torch.equal(aegis.generate(llama, ids, max_new_tokens=new, pad_token_id=0, runner=runner), want)


def test_goes_on_until_the_cache_is_full_and_no_further(llama):
    """Trees get smaller where there is less room than they have nodes."""
    ids = tiny_models.prompts(1)
    want = llama.generate(ids, max_new_tokens=8, do_sample=False)
    with SpeculativeFastRunner(llama, llama, max_cache_len=16, tree=(3, 2, 2)) as runner:
        assert torch.equal(run(runner, ids, new=8), want)
        assert runner.cache.row_lengths == [16]
        with pytest.raises(ValueError, match="cache: expected room for another token"):
            runner.step()
        assert torch.equal(runner.text(0), want[0])


def test_rows_end_at_different_times_and_others_go_on(llama):
    ids = tiny_models.prompts(5)
    free = llama.generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=0)
    ends = sorted({int(free[row, at]) for row, at in ((0, 12), (2, 14), (4, 20))})
    options = {"max_new_tokens": 40, "pad_token_id": 0, "eos_token_id": ends}
    want = llama.generate(ids, do_sample=False, **options)
    for draft in (llama, another("llama"), PromptLookup()):
        runner = SpeculativeFastRunner(llama, draft, batch_size=5, max_cache_len=80, tree=(2, 2, 1))
        assert torch.equal(aegis.generate(llama, ids, runner=runner, **options), want)
        assert torch.equal(aegis.generate(llama, ids, runner=runner, **options), want), "a runner is used again"


def test_a_pass_that_failed_changes_nothing(llama):
    ids = tiny_models.prompts(2)
    want = llama.generate(ids, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    with SpeculativeFastRunner(llama, llama, batch_size=2, max_cache_len=60, tree=(2, 2)) as runner:
        runner.prefill(ids)
        runner.step()
        lengths, keep = runner.lengths, runner._tree.branches.keep
        for target in (True, False):

            def fails(*_, **__):
                raise KeyboardInterrupt

            place, name = (llama.lm_head, "forward") if target else (runner._tree.branches, "keep")
            setattr(place, name, fails)
            with pytest.raises(KeyboardInterrupt):
                runner.step()
            delattr(place, name)
            assert runner.lengths == lengths
        assert runner._tree.branches.keep == keep
        run_on(runner, ids.shape[1] + NEW)
        for row in range(2):
            assert torch.equal(runner.text(row)[: want.shape[1]], want[row])


# --- drafts and arguments ----------------------------------------------------------------------------------------


def test_lookup_takes_several_matches_as_branches():
    find = LookupBranches(type("draft", (), {"lookup": PromptLookup(2)}))._find
    text = torch.tensor([1, 2, 3, 9, 1, 2, 3, 8, 5, 2, 7, 1, 2]).numpy()
    parents, tokens = find(text, 10, 2)
    assert tokens == [3, 8, 9, 7, 1], "of two tokens the newest match, then the other; then of one"
    assert parents == [-1, 0, 0, -1, 3]
    assert find(text, 4, 2) == ([-1, 0, 0, -1], [3, 8, 9, 7])
    assert find(text, 9, 1) == ([-1, -1], [3, 7])
    assert find(text[:3], 9, 3) == ([], [])
    assert len(find(torch.zeros(10_000, dtype=torch.int64).numpy(), 64, 64)[0]) == 64


def test_bad_input(llama):
    small = tiny_models.make("llama", vocab_size=6)
    with pytest.raises(ValueError, match="branching: expected at most 64 nodes"):
        SpeculativeFastRunner(llama, max_cache_len=20, tree=(8, 8))
    with pytest.raises(TypeError, match="tree: expected a TokenTree or the widths"):
        SpeculativeFastRunner(llama, max_cache_len=20, tree=3)
    with pytest.raises(ValueError, match="tree: expected at most 6 tokens side by side, got 7"):
        SpeculativeFastRunner(small, max_cache_len=20, tree=(7,))
