#include "core/id_scan.h"

#include <algorithm>
#include <mutex>

#include "core/parallel.h"

namespace aegis {
namespace {

constexpr int64_t kPiece = 1 << 20;  // tokens

template <class Token>
IdScan scan_piece(const Token* tokens, int64_t count, int64_t limit) {
  Token smallest = tokens[0], largest = tokens[0];
  for (int64_t i = 0; i < count; ++i) {
    const Token token = tokens[i];  // std::min takes references, of which gcc makes no vectors
    smallest = token < smallest ? token : smallest;
    largest = token > largest ? token : largest;
  }
  IdScan found{static_cast<int64_t>(smallest), static_cast<int64_t>(largest), -1};
  if (found.smallest >= 0 && found.largest < limit) return found;
  const Token* bad = std::find_if(tokens, tokens + count, [limit](Token token) {
    return static_cast<int64_t>(token) < 0 || static_cast<int64_t>(token) >= limit;
  });
  if (bad != tokens + count) found.first_outside = bad - tokens;
  return found;
}

}  // namespace

IdScan scan_ids(TokenType type, const void* tokens, int64_t count, int64_t limit, int threads) {
  IdScan all;
  std::mutex mutex;  // over all
  with_token_type(type, [&]<class Token>(std::type_identity<Token>) {
    const auto* items = static_cast<const Token*>(tokens);
    parallel_for((count + kPiece - 1) / kPiece, threads, [&](int64_t piece) {
      const int64_t begin = piece * kPiece;
      const IdScan found = scan_piece(items + begin, std::min(kPiece, count - begin), limit);
      const std::lock_guard lock(mutex);
      all.smallest = std::min(all.smallest, found.smallest);
      all.largest = std::max(all.largest, found.largest);
      if (found.first_outside < 0) return;
      const int64_t at = begin + found.first_outside;
      if (all.first_outside < 0 || at < all.first_outside) all.first_outside = at;
    });
  });
  return all;
}

}  // namespace aegis
