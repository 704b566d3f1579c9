#include "simt/reports.h"

#include <sstream>
#include <string_view>
#include <utility>

namespace aegis::simt {

void Reports::add(std::string text) {
  if (count_++ < kKept) texts_.push_back(std::move(text));
}

std::string Reports::take() {
  std::string all;
  for (const std::string& text : texts_) all += (all.empty() ? "" : "\n") + text;
  if (count_ > kKept) all += "\nand " + std::to_string(count_ - kKept) + " more";
  texts_.clear();
  places_.clear();
  count_ = 0;
  return all;
}

Reports& reports() {
  static Reports all;
  return all;
}

std::string coordinates(unsigned x, unsigned y, unsigned z) {
  std::ostringstream text;
  text << '(' << x << ',' << y << ',' << z << ')';
  return text.str();
}

std::string place(const std::source_location& where) {
  const std::string_view path = where.file_name();
  return std::string(path.substr(path.rfind('/') + 1)) + ":" + std::to_string(where.line());
}

}  // namespace aegis::simt
