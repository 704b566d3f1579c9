// Token trees, and the verification of a batch of them.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/token_tree.h"
#include "python/bind.h"

namespace aegis {
namespace {

namespace py = pybind11;

template <class T>
using Array = py::array_t<T, py::array::c_style>;
using Numbers = std::vector<int64_t>;
using Trees = std::vector<const TokenTree*>;

template <class T>
void check_shape(const Array<T>& array, const char* name, std::vector<py::ssize_t> shape) {
  const std::vector<py::ssize_t> got(array.shape(), array.shape() + array.ndim());
  const auto text = [](const std::vector<py::ssize_t>& sizes) {
    std::string list;
    for (py::ssize_t size : sizes) list += (list.empty() ? "" : ", ") + std::to_string(size);
    return "(" + list + ")";
  };
  check<std::invalid_argument>(got == shape, name, ": expected shape ", text(shape), ", got ",
                               text(got));
}

/// What verification needs to know of a batch; rows share a tree, or each has its own, of at most
/// as many nodes as there are tokens.
struct Batch {
  Batch(const Trees& list, const Array<int64_t>& guesses) : trees(list), tokens(guesses) {
    check<std::invalid_argument>(guesses.ndim() == 2, "tokens: expected (rows, nodes), got ",
                                 guesses.ndim(), " dimensions");
    rows = guesses.shape(0);
    nodes = guesses.shape(1);
    const auto given = static_cast<int64_t>(list.size());
    check<std::invalid_argument>(given == 1 || given == rows, "trees: expected 1 or ", rows,
                                 ", as many as there are rows, got ", given);
    for (const TokenTree* tree : list) {
      check<std::invalid_argument>(tree != nullptr && tree->size() <= nodes,
                                   "trees: expected at most ", nodes,
                                   " nodes, as many as there are tokens");
      depth = std::max(depth, tree->max_depth());
    }
  }

  const TokenTree& tree(int64_t row) const { return *trees[trees.size() == 1 ? 0 : row]; }
  TreeTokens guesses(int64_t row) const {
    return {tokens.data() + row * nodes, static_cast<size_t>(nodes)};
  }

  /// Calls `follow(row)` for each, without the GIL.
  template <class Follow>
  py::tuple paths(const Follow& follow) const {
    Array<int64_t> kept(rows), following(rows), chosen({rows, depth});
    int64_t *k = kept.mutable_data(), *f = following.mutable_data(), *c = chosen.mutable_data();
    {
      const py::gil_scoped_release release;
      for (int64_t row = 0; row < rows; ++row) {
        const TreePath path = follow(row);
        k[row] = path.length;
        f[row] = path.following;
        for (int64_t d = 0; d < depth; ++d) {
          c[row * depth + d] = d < path.length ? path.nodes[d] : -1;
        }
      }
    }
    return py::make_tuple(kept, chosen, following);
  }

  const Trees& trees;
  const Array<int64_t>& tokens;
  int64_t rows = 0, nodes = 0, depth = 0;
};

py::tuple picks(const Trees& trees, const Array<int64_t>& tokens, const Array<int64_t>& picked) {
  const Batch batch(trees, tokens);
  check_shape(picked, "picked", {batch.rows, batch.nodes + 1});
  return batch.paths([&](int64_t row) {
    const int64_t columns = batch.nodes + 1;
    return follow_picks(batch.tree(row), batch.guesses(row),
                        {picked.data() + row * columns, static_cast<size_t>(columns)});
  });
}

py::tuple draws(const Trees& trees, const Array<int64_t>& tokens, const Array<float>& target,
                const Array<float>& draft, const Array<int64_t>& state) {
  const Batch batch(trees, tokens);
  check<std::invalid_argument>(target.ndim() == 3 && target.shape(2) > 0,
                               "target: expected (rows, nodes + 1, vocabulary)");
  const int64_t vocabulary = target.shape(2);
  check_shape(target, "target", {batch.rows, batch.nodes + 1, vocabulary});
  int64_t inner = 0;
  for (const TokenTree* tree : trees) inner = std::max(inner, tree->inner_count());
  check_shape(draft, "draft", {batch.rows, inner, vocabulary});
  check_shape(state, "state", {batch.rows, 4});
  for (int64_t i = 0; i < tokens.size(); ++i) {
    check<std::invalid_argument>(tokens.data()[i] < vocabulary, "tokens: expected less than ",
                                 vocabulary, ", the vocabulary, got ", tokens.data()[i]);
  }
  std::vector<float> rest(static_cast<size_t>(2 * vocabulary));
  return batch.paths([&](int64_t row) {
    const TreeLaws laws{target.data() + row * (batch.nodes + 1) * vocabulary,
                        draft.data() + row * inner * vocabulary, vocabulary};
    const int64_t* names = state.data() + row * 4;
    return follow_draws(batch.tree(row), batch.guesses(row), laws, {names[0], names[1], names[2]},
                        rest);
  });
}

Array<int64_t> array_of(std::span<const int64_t> numbers) {
  return Array<int64_t>(static_cast<py::ssize_t>(numbers.size()), numbers.data());
}

}  // namespace

void bind_token_tree(py::module_& m) {
  py::class_<TokenTree>(m, "TokenTree")
      .def(py::init([](const Numbers& parents) { return TokenTree(parents); }), py::arg("parents"))
      .def_static(
          "from_branching", [](const Numbers& widths) { return TokenTree::from_branching(widths); },
          py::arg("widths"))
      .def("__len__", &TokenTree::size)
      .def_property_readonly("max_depth", &TokenTree::max_depth)
      .def_property_readonly("parents",
                             [](const TokenTree& self) { return array_of(self.parents()); })
      .def_property_readonly("depths",
                             [](const TokenTree& self) { return array_of(self.depths()); })
      .def_property_readonly("inner_ranks",
                             [](const TokenTree& self) {
                               Array<int64_t> ranks(self.size() + 1);
                               for (int64_t i = TokenTree::kRoot; i < self.size(); ++i) {
                                 ranks.mutable_data()[i + 1] = self.inner_rank(i);
                               }
                               return ranks;
                             })
      .def("mask",
           [](const TokenTree& self) {
             Array<bool> seen({self.size() + 1, self.size() + 1});
             self.mask(seen.mutable_data());
             return seen;
           })
      .def("paths", [](const TokenTree& self) {
        Array<int64_t> nodes({self.size() + 1, self.max_depth()});
        self.paths(nodes.mutable_data());
        return nodes;
      });
  m.attr("TREE_DOMAINS") = kTreeDomains;
  m.def("follow_picks", &picks, py::arg("trees"), py::arg("tokens"), py::arg("picked"));
  m.def("follow_draws", &draws, py::arg("trees"), py::arg("tokens"), py::arg("target"),
        py::arg("draft"), py::arg("state"));
}

}  // namespace aegis
