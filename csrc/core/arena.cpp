#include "core/arena.h"

#include <sstream>

#include "core/check.h"

namespace aegis {

Arena::Arena(size_t bytes, const MappingOptions& options) : memory_(bytes, options) {}

std::byte* Arena::allocate(size_t bytes) {
  const size_t start =
      (used_ + kAlign - 1) / kAlign * kAlign;  // at most size(), which is whole pages
  const size_t room = memory_.size() - start;
  if (bytes > room) {
    std::ostringstream text;
    text << "arena: expected a request of at most " << room << " bytes (" << memory_.size()
         << " in all, " << used_ << " in use), got " << bytes;
    throw ArenaExhausted(text.str());
  }
  used_ = start + bytes;
  return memory_.data() + start;
}

}  // namespace aegis
