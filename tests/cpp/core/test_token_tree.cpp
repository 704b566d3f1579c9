#include "core/token_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace aegis {
namespace {

using Numbers = std::vector<int64_t>;

/// What `make` throws, as text; empty where it throws nothing.
template <class Make>
std::string refused(const Make& make) {
  try {
    make();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(TokenTree, KnowsDepthsLinesAndChildren) {
  const TokenTree tree(Numbers{-1, -1, 0, 1, 1, 2});
  EXPECT_EQ(Numbers(tree.depths().begin(), tree.depths().end()), (Numbers{1, 1, 2, 2, 2, 3}));
  EXPECT_EQ(tree.max_depth(), 3);
  EXPECT_EQ(tree.line(5), 0b100101u);
  const auto children = tree.children(1);
  EXPECT_EQ(Numbers(children.begin(), children.end()), (Numbers{3, 4}));
  EXPECT_EQ(tree.children(TokenTree::kRoot).size(), 2u);
  EXPECT_TRUE(tree.children(5).empty());
  EXPECT_EQ(tree.inner_count(), 4);
  EXPECT_EQ(tree.inner_rank(TokenTree::kRoot), 0);
  EXPECT_EQ(tree.inner_rank(2), 3);
  EXPECT_EQ(tree.inner_rank(5), -1);
}

TEST(TokenTree, TakesAllOf64NodesInOneLine) {
  Numbers parents(64);
  for (int64_t i = 0; i < 64; ++i) parents[i] = i - 1;
  const TokenTree tree(parents);
  EXPECT_EQ(tree.max_depth(), 64);
  EXPECT_EQ(tree.line(63), UINT64_MAX);
  parents.push_back(63);
  EXPECT_EQ(refused([&] { TokenTree t(parents); }), "parents: expected 1 to 64 nodes, got 65");
}

TEST(TokenTree, RefusesCyclesAndParentsAfterChildren) {
  EXPECT_EQ(refused([] { TokenTree t(Numbers{}); }), "parents: expected 1 to 64 nodes, got 0");
  EXPECT_EQ(refused([] { TokenTree t(Numbers{-1, 1}); }),
            "parents[1]: expected -1 (the root) or a node before it, got 1");
  EXPECT_EQ(refused([] { TokenTree t(Numbers{1, -1}); }),
            "parents[0]: expected -1 (the root) or a node before it, got 1");
  EXPECT_NE(refused([] { TokenTree t(Numbers{-2}); }), "");
  EXPECT_NE(refused([] { TokenTree t(Numbers{INT64_MIN, INT64_MAX}); }), "");
}

TEST(TokenTree, BranchesLevelByLevel) {
  const TokenTree tree = TokenTree::from_branching(Numbers{2, 3, 1});
  ASSERT_EQ(tree.size(), 2 + 6 + 6);
  for (int64_t i = 1; i < tree.size(); ++i) EXPECT_LE(tree.depths()[i - 1], tree.depths()[i]);
  for (int64_t i = 0; i < tree.size(); ++i) {
    EXPECT_EQ(tree.children(i).size(), (Numbers{3, 1, 0})[tree.depths()[i] - 1]);
  }
  EXPECT_EQ(TokenTree::from_branching(Numbers{64}).size(), 64);
  EXPECT_NE(refused([] { TokenTree::from_branching(Numbers{65}); }), "");
  EXPECT_NE(refused([] { TokenTree::from_branching(Numbers{8, 8}); }), "");
  EXPECT_NE(refused([] { TokenTree::from_branching(Numbers{2, INT64_MAX}); }), "");
  EXPECT_NE(refused([] { TokenTree::from_branching(Numbers{}); }), "");
  EXPECT_NE(refused([] { TokenTree::from_branching(Numbers{2, 0}); }), "");
}

TEST(TokenTree, MaskAndPathsSayTheSame) {
  std::mt19937 random(3);
  for (int64_t nodes = 1; nodes <= 64; ++nodes) {
    Numbers parents;
    for (int64_t i = 0; i < nodes; ++i) {
      parents.push_back(static_cast<int64_t>(random() % static_cast<unsigned>(i + 1)) - 1);
    }
    const TokenTree tree(parents);
    const auto mask = std::make_unique<bool[]>((nodes + 1) * (nodes + 1));
    Numbers paths((nodes + 1) * tree.max_depth());
    tree.mask(mask.get());
    tree.paths(paths.data());
    for (int64_t i = 0; i <= nodes; ++i) {
      std::vector<bool> want(nodes + 1);
      want[0] = true;
      for (int64_t d = 0; d < tree.max_depth(); ++d) {
        const int64_t node = paths[i * tree.max_depth() + d];
        ASSERT_EQ(node >= 0, i > 0 && d < tree.depths()[i - 1]);
        if (node >= 0) want[node + 1] = true;
      }
      for (int64_t j = 0; j <= nodes; ++j) ASSERT_EQ(mask[i * (nodes + 1) + j], want[j]);
    }
  }
}

TEST(TokenTree, FollowsPicksAndPassesOverNodesThatAreNone) {
  const TokenTree tree(Numbers{-1, -1, 1, 1, 3});
  const TreePath path = follow_picks(tree, Numbers{7, 8, -1, 9, 5}, Numbers{8, 0, 9, 0, 4, 0});
  EXPECT_EQ(path.length, 2);
  EXPECT_EQ(path.nodes[0], 1);
  EXPECT_EQ(path.nodes[1], 3);
  EXPECT_EQ(path.following, 4);
  EXPECT_EQ(follow_picks(tree, Numbers{7, 8, 9, 9, 5}, Numbers{6, 0, 0, 0, 0, 0}).length, 0);
  // A target that picks -1 (there is no such token) follows no node that is none.
  EXPECT_EQ(follow_picks(tree, Numbers{-1, 8, 9, 9, 5}, Numbers{-1, 0, 0, 0, 0, 0}).length, 0);
}

/// A token drawn from weights that `used` has no bit of.
int64_t drawn(const std::vector<float>& weights, uint64_t used, std::mt19937_64& random) {
  std::vector<double> left(weights.begin(), weights.end());
  for (size_t i = 0; i < left.size(); ++i) {
    if (used >> i & 1) left[i] = 0;
  }
  return std::discrete_distribution<int64_t>(left.begin(), left.end())(random);
}

// One level of two children, then their own: what comes out first must be as p says, and what
// comes out second as p behind the first says.
TEST(TokenTree, DrawsFollowTheTargetsLaw) {
  const std::vector<std::vector<float>> p{
      {.5f, .2f, .2f, .1f},
      {.1f, .1f, .1f, .7f},
      {0, .5f, .5f, 0},
      {.25f, .25f, .25f, .25f},
      {.9f, .1f, 0, 0}};  // behind the text, then behind each first token
  const std::vector<std::vector<float>> q{{.1f, .6f, .1f, .2f},
                                          {.7f, .1f, .1f, .1f},
                                          {.3f, .3f, .2f, .2f},
                                          {0, 0, .5f, .5f},
                                          {.25f, .25f, .25f, .25f}};
  constexpr int64_t kVocabulary = 4, kTexts = 100'000;
  const TokenTree tree = TokenTree::from_branching(Numbers{2, 2});
  std::mt19937_64 random(5);
  std::vector<float> rest(2 * kVocabulary);
  int64_t counts[kVocabulary][kVocabulary] = {};
  int64_t kept = 0;
  for (int64_t text = 0; text < kTexts; ++text) {
    Numbers tokens(6, -1);
    std::vector<float> target(7 * kVocabulary), draft(3 * kVocabulary);
    const auto put = [](std::vector<float>& rows, int64_t row, const std::vector<float>& law) {
      std::copy(law.begin(), law.end(), rows.begin() + row * kVocabulary);
    };
    put(target, 0, p[0]);
    put(draft, 0, q[0]);
    tokens[0] = drawn(q[0], 0, random);
    tokens[1] = drawn(q[0], uint64_t{1} << tokens[0], random);
    for (int64_t first : {0, 1}) {
      const auto& mine = q[tokens[first] + 1];
      put(target, first + 1, p[tokens[first] + 1]);
      put(draft, first + 1, mine);
      tokens[2 + 2 * first] = drawn(mine, 0, random);
      tokens[3 + 2 * first] = drawn(mine, uint64_t{1} << tokens[2 + 2 * first], random);
      for (int64_t child : {2, 3}) put(target, 2 * first + child + 1, p[0]);
    }
    const TreePath path =
        follow_draws(tree, tokens, {target.data(), draft.data(), kVocabulary}, {9, text, 0}, rest);
    kept += path.length;
    Numbers out;
    for (int64_t d = 0; d < path.length; ++d) out.push_back(tokens[path.nodes[d]]);
    out.push_back(path.following);
    // Where nothing was kept, the second token comes from a pass of its own.
    if (out.size() == 1) out.push_back(drawn(p[out[0] + 1], 0, random));
    ++counts[out[0]][out[1]];
  }
  EXPECT_GT(kept, kTexts / 2);
  EXPECT_LT(kept, 2 * kTexts);
  double chi = 0;
  int freedom = -1;
  for (int64_t a = 0; a < kVocabulary; ++a) {
    for (int64_t b = 0; b < kVocabulary; ++b) {
      const double want = double{p[0][a]} * p[a + 1][b] * kTexts;
      if (want == 0) {
        ASSERT_EQ(counts[a][b], 0);
        continue;
      }
      chi += std::pow(static_cast<double>(counts[a][b]) - want, 2) / want;
      ++freedom;
    }
  }
  EXPECT_LT(chi, freedom + 5 * std::sqrt(2.0 * freedom));
}

TEST(TokenTree, EqualLawsKeepTheFirstChildAndUnlikelyOnesAreNeverGiven) {
  const TokenTree tree = TokenTree::from_branching(Numbers{3});
  std::vector<float> rest(8);
  std::vector<float> target, draft{.25f, .25f, .25f, .25f};
  for (int row = 0; row < 4; ++row) target.insert(target.end(), {.25f, .25f, .25f, .25f});
  for (int64_t text = 0; text < 1000; ++text) {
    const Numbers tokens{text % 4, (text + 1) % 4, (text + 2) % 4};
    const TreePath path =
        follow_draws(tree, tokens, {target.data(), draft.data(), 4}, {1, text, 0}, rest);
    ASSERT_EQ(path.length, 1);
    ASSERT_EQ(path.nodes[0], 0);
  }
  const std::vector<float> sure{0, 0, 1, 0};
  std::copy(sure.begin(), sure.end(), target.begin());
  for (int64_t text = 0; text < 1000; ++text) {
    const TreePath path =
        follow_draws(tree, Numbers{0, 1, 3}, {target.data(), draft.data(), 4}, {1, text, 0}, rest);
    ASSERT_EQ(path.length, 0);
    ASSERT_EQ(path.following, 2);
  }
}

}  // namespace
}  // namespace aegis
