#include "core/token_tree.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/philox.h"

namespace aegis {

TokenTree::TokenTree(std::span<const int64_t> parents)
    : parents_(parents.begin(), parents.end()),
      first_children_(parents.size() + 2),
      inner_ranks_(parents.size() + 1, -1) {
  check<std::invalid_argument>(1 <= size() && size() <= kMaxNodes, "parents: expected 1 to ",
                               kMaxNodes, " nodes, got ", size());
  for (int64_t i = 0; i < size(); ++i) {
    const int64_t parent = parents_[i];
    check<std::invalid_argument>(kRoot <= parent && parent < i, "parents[", i, "]: expected ",
                                 kRoot, " (the root) or a node before it, got ", parent);
    depths_.push_back(parent == kRoot ? 1 : depths_[parent] + 1);
    lines_.push_back((parent == kRoot ? 0 : lines_[parent]) | uint64_t{1} << i);
  }
  max_depth_ = *std::max_element(depths_.begin(), depths_.end());
  children_.reserve(parents_.size());
  for (int64_t node = kRoot; node < size(); ++node) {
    first_children_[node + 1] = static_cast<int64_t>(children_.size());
    for (int64_t i = node + 1; i < size(); ++i) {
      if (parents_[i] == node) children_.push_back(i);
    }
    const bool inner = first_children_[node + 1] < static_cast<int64_t>(children_.size());
    if (inner) inner_ranks_[node + 1] = inner_count_++;
  }
  first_children_.back() = size();
}

TokenTree TokenTree::from_branching(std::span<const int64_t> widths) {
  check<std::invalid_argument>(!widths.empty(), "branching: expected at least 1 level, got none");
  std::vector<int64_t> parents, level{kRoot};
  for (size_t d = 0; d < widths.size(); ++d) {
    check<std::invalid_argument>(widths[d] >= 1, "branching[", d, "]: expected at least 1, got ",
                                 widths[d]);
    const auto room = kMaxNodes - static_cast<int64_t>(parents.size());
    check<std::invalid_argument>(widths[d] <= room / static_cast<int64_t>(level.size()),
                                 "branching: expected at most ", kMaxNodes,
                                 " nodes in all, got more at level ", d);
    std::vector<int64_t> next;
    for (int64_t node : level) {
      for (int64_t child = 0; child < widths[d]; ++child) {
        next.push_back(static_cast<int64_t>(parents.size()));
        parents.push_back(node);
      }
    }
    level = std::move(next);
  }
  return TokenTree(parents);
}

std::span<const int64_t> TokenTree::children(int64_t node) const {
  const int64_t begin = first_children_[node + 1], end = first_children_[node + 2];
  return std::span(children_).subspan(begin, end - begin);
}

void TokenTree::mask(bool* out) const {
  const int64_t columns = size() + 1;
  for (int64_t i = 0; i < columns; ++i) {
    bool* row = out + i * columns;
    row[0] = true;
    for (int64_t j = 0; j < size(); ++j) row[j + 1] = i > 0 && (lines_[i - 1] >> j & 1) != 0;
  }
}

void TokenTree::paths(int64_t* out) const {
  std::fill(out, out + (size() + 1) * max_depth_, -1);
  for (int64_t i = 0; i < size(); ++i) {
    for (int64_t node = i; node != kRoot; node = parents_[node]) {
      out[(i + 1) * max_depth_ + depths_[node] - 1] = node;
    }
  }
}

TreePath follow_picks(const TokenTree& tree, TreeTokens tokens, std::span<const int64_t> picked) {
  TreePath path;
  for (int64_t node = TokenTree::kRoot;;) {
    path.following = picked[node + 1];
    const auto children = tree.children(node);
    const auto kept = std::find_if(children.begin(), children.end(), [&](int64_t child) {
      return tokens[child] >= 0 && tokens[child] == path.following;
    });
    if (kept == children.end()) return path;
    node = path.nodes[path.length++] = *kept;
  }
}

namespace {

double random(const TreeNumbers& numbers, int64_t depth, TreeDomain domain, int64_t node) {
  const auto position = static_cast<uint64_t>(numbers.position) + static_cast<uint64_t>(depth) - 1;
  return kernels::uniform(numbers.seed, numbers.row, static_cast<int64_t>(position),
                          static_cast<int64_t>(domain) + kTreeDomains * (node + 1));
}

/// Sums in several lanes, so that additions need not wait for each other; in double, so that large
/// vocabularies add up.
class Sum {
 public:
  void add(int64_t i, float x) { lanes_[i % kLanes] += static_cast<double>(x); }
  double total() const {
    double sum = 0;
    for (double lane : lanes_) sum += lane;
    return sum;
  }

 private:
  static constexpr int64_t kLanes = 8;
  std::array<double, kLanes> lanes_{};
};

/// Numbers that are those of a distribution but for a factor.
struct Weights {
  std::span<float> of;
  double total = 0;

  void copy(const float* from) {
    Sum sum;
    for (size_t i = 0; i < of.size(); ++i) sum.add(static_cast<int64_t>(i), of[i] = from[i]);
    total = sum.total();
  }

  double chance(int64_t token) const {
    return total > 0 ? static_cast<double>(of[token]) / total : 0;
  }

  /// Inverse of the cumulated distribution. Never a token of weight 0 where there is another.
  int64_t draw(double number) const {
    const double least = number * total;
    double sum = 0;
    int64_t last = 0;
    for (size_t i = 0; i < of.size(); ++i) {
      if (!(of[i] > 0)) continue;
      last = static_cast<int64_t>(i);
      sum += static_cast<double>(of[i]);
      if (sum > least) break;
    }
    return last;
  }
};

/// p becomes what is left of it once a token drawn from q was lost, and q what is left without the
/// token. Where p and q differ by rounding alone nothing is left of p, and it stays as it is.
void lose(Weights& p, Weights& q, int64_t token) {
  const auto scale = static_cast<float>(p.total / q.total);
  Sum left;
  for (size_t i = 0; i < p.of.size(); ++i) {
    left.add(static_cast<int64_t>(i), std::max(p.of[i] - q.of[i] * scale, 0.0f));
  }
  if (left.total() > 0) {
    for (size_t i = 0; i < p.of.size(); ++i) p.of[i] = std::max(p.of[i] - q.of[i] * scale, 0.0f);
    p.total = left.total();
  }
  q.of[token] = 0;
  Sum others;
  for (size_t i = 0; i < q.of.size(); ++i) others.add(static_cast<int64_t>(i), q.of[i]);
  q.total = others.total();
}

}  // namespace

TreePath follow_draws(const TokenTree& tree, TreeTokens tokens, const TreeLaws& laws,
                      const TreeNumbers& numbers, std::span<float> rest) {
  const auto vocabulary = static_cast<size_t>(laws.vocabulary);
  Weights p{rest.first(vocabulary)}, q{rest.subspan(vocabulary, vocabulary)};
  TreePath path;
  int64_t node = TokenTree::kRoot;
  for (bool kept = true; kept;) {
    p.copy(laws.target + (node + 1) * laws.vocabulary);
    const auto children = tree.children(node);
    if (!children.empty()) q.copy(laws.draft + tree.inner_rank(node) * laws.vocabulary);
    kept = false;
    for (int64_t child : children) {
      const int64_t token = tokens[child];
      if (token < 0) break;  // there was nothing left to draw
      const double number = random(numbers, path.length + 1, TreeDomain::accept, child);
      kept = number * q.chance(token) < p.chance(token);
      if (kept) {
        node = path.nodes[path.length++] = child;
        break;
      }
      if (q.total > 0) lose(p, q, token);
    }
  }
  const bool leaf = tree.children(node).empty();
  path.following = p.draw(
      random(numbers, path.length + 1, leaf ? TreeDomain::bonus : TreeDomain::residual, node));
  return path;
}

}  // namespace aegis
