// Trees of guesses that a model verifies in one pass: what each node follows and sees, and which
// path is kept.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace aegis {

/// Guesses of several continuations of one text, with common beginnings shared. Node i is a token
/// that follows its parent: a node before it, or the root, which is the last token of the text and
/// is not among the nodes. Depths count from the root, which has 0.
class TokenTree {
 public:
  static constexpr int64_t kMaxNodes = 64;
  static constexpr int64_t kRoot = -1;

  /// Throws std::invalid_argument for no nodes or more than kMaxNodes, and for a parent that is
  /// neither kRoot nor an earlier node: so there are no cycles.
  explicit TokenTree(std::span<const int64_t> parents);

  /// widths[d] children for every node of depth d, level by level. Throws std::invalid_argument for
  /// no levels, a width below 1 or more than kMaxNodes in all.
  static TokenTree from_branching(std::span<const int64_t> widths);

  int64_t size() const { return static_cast<int64_t>(parents_.size()); }
  std::span<const int64_t> parents() const { return parents_; }
  std::span<const int64_t> depths() const { return depths_; }
  int64_t max_depth() const { return max_depth_; }

  /// Bit j: node j is node i itself, or lies between it and the root.
  uint64_t line(int64_t i) const { return lines_[i]; }

  /// Of `node`, or of kRoot, in ascending order.
  std::span<const int64_t> children(int64_t node) const;

  /// Which of the nodes that have children this one is, kRoot being the first, 0; -1 without any.
  int64_t inner_rank(int64_t node) const { return inner_ranks_[node + 1]; }
  /// How many nodes have children, kRoot included.
  int64_t inner_count() const { return inner_count_; }

  /// What each sees of the others: out[i * (size + 1) + j] says whether i sees j, where 0 is the
  /// root and i + 1 is node i. A node sees the root, its line and itself.
  void mask(bool* out) const;

  /// The nodes on the way from the root to each: out[(i + 1) * max_depth + d] is the node of depth
  /// d + 1 on the way to node i, or -1; the root's own, first, are all -1.
  void paths(int64_t* out) const;

 private:
  std::vector<int64_t> parents_, depths_;
  std::vector<uint64_t> lines_;
  std::vector<int64_t> children_;        // of the root, then of node 0, 1, ...
  std::vector<int64_t> first_children_;  // where each one's begin in children_, and the end
  std::vector<int64_t> inner_ranks_;
  int64_t inner_count_ = 0, max_depth_ = 0;
};

/// What is kept of a tree: nodes from the root down, and the token behind the last of them.
struct TreePath {
  int64_t length = 0;
  std::array<int64_t, TokenTree::kMaxNodes> nodes{};
  int64_t following = 0;
};

/// What was guessed at the nodes of a tree. A node whose token is negative is none, and nothing
/// behind it is looked at.
using TreeTokens = std::span<const int64_t>;

/// Keeps nodes for as long as they are what the target picked there: exact for whatever guessed,
/// since every token is the target's own pick. picked[0] follows the root, picked[i + 1] node i.
TreePath follow_picks(const TokenTree& tree, TreeTokens tokens, std::span<const int64_t> picked);

/// Names the random numbers of a row; `position` is that of the token behind the root.
struct TreeNumbers {
  int64_t seed, row, position;
};

/// Random numbers of different purposes come from different domains, as in aegis.decode.law; those
/// of a node are moved on by kTreeDomains times (node + 1).
enum class TreeDomain : int64_t { draft = 1, accept = 2, residual = 3, bonus = 4 };
constexpr int64_t kTreeDomains = 8;

/// Distributions over the same `vocabulary` tokens, none of them negative.
struct TreeLaws {
  const float* target;  ///< (size + 1, vocabulary): behind the root, then behind each node
  const float* draft;   ///< (inner_count, vocabulary): what children were drawn from
  int64_t vocabulary;
};

/// Keeps nodes so that what comes out is distributed as the target's, whatever the draft.
///
/// Children of a node were drawn one after another from the draft's distribution q, each without
/// those before it. They are tried in that order: token x is kept with the chance min(1, p(x) /
/// q(x)); where it is lost, what is left of p is max(p - q, 0), and what is left of q is q without
/// x, both made to sum to 1 again. Where all are lost, a token is drawn from what is left of p.
/// (Multi-round rejection: SpecInfer, Miao et al. 2023; without replacement: Jeon et al. 2024.)
///
/// `rest` is memory for 2 * vocabulary numbers. Cost: a pass over two rows for each node that is
/// lost, two for each that is kept. Tokens are less than the vocabulary.
TreePath follow_draws(const TokenTree& tree, TreeTokens tokens, const TreeLaws& laws,
                      const TreeNumbers& numbers, std::span<float> rest);

}  // namespace aegis
