#include "core/token_header.h"

#include <cstring>

#include "core/check.h"

namespace aegis {
namespace {

constexpr uint32_t kGpt2 = 20240520;
constexpr uint32_t kLlama3 = 20240801;
constexpr uint32_t kEvaluation = 20240522;

bool is_magic(uint32_t number) {
  return number == kGpt2 || number == kLlama3 || number == kEvaluation;
}

/// Header number `index`, little-endian unless `swapped`.
uint32_t number_at(std::span<const std::byte> head, size_t index, bool swapped) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    const size_t at = index * 4 + (swapped ? 3 - i : i);
    value |= std::to_integer<uint32_t>(head[at]) << (8 * i);
  }
  return value;
}

}  // namespace

std::optional<TokenHeader> read_llmc_header(std::span<const std::byte> head, int64_t file_size,
                                            std::string_view path) {
  if (head.size() < 4) return std::nullopt;
  const bool swapped = !is_magic(number_at(head, 0, false));
  const uint32_t magic = number_at(head, 0, swapped);
  if (!is_magic(magic)) return std::nullopt;

  check<std::invalid_argument>(magic != kEvaluation, path,
                               ": this is an llm.c evaluation set (magic 20240522), which is no "
                               "stream of tokens");
  const int64_t header = static_cast<int64_t>(kLlmcHeaderBytes);
  check<std::invalid_argument>(head.size() >= kLlmcHeaderBytes && file_size >= header, path,
                               ": expected an llm.c header of ", header,
                               " bytes, the file ends after ", file_size);

  const TokenType type = magic == kGpt2 ? TokenType::u16 : TokenType::u32;
  const uint32_t expected_version = magic == kGpt2 ? 1 : 7;
  const uint32_t version = number_at(head, 1, swapped);
  check<std::invalid_argument>(version == expected_version, path, ": llm.c magic ", magic,
                               ": expected version ", expected_version, ", got ", version);

  const auto tokens = static_cast<int32_t>(number_at(head, 2, swapped));
  check<std::invalid_argument>(tokens > 0, path, ": expected at least 1 token, the header says ",
                               tokens);
  const int64_t item = static_cast<int64_t>(size_of(type));
  const int64_t expected = header + tokens * item;
  check<std::invalid_argument>(file_size == expected, path, ": expected ", expected,
                               " bytes (header ", header, " + ", tokens, " ", name(type),
                               " tokens), got ", file_size, " (",
                               file_size > expected ? file_size - expected : expected - file_size,
                               file_size > expected ? " too many)" : " missing)");
  return TokenHeader{type, header, tokens, swapped};
}

int64_t raw_token_count(int64_t file_size, TokenType type, std::string_view path) {
  check<std::invalid_argument>(file_size > 0, path, ": the file is empty");
  const int64_t item = static_cast<int64_t>(size_of(type));
  check<std::invalid_argument>(file_size % item == 0, path, ": ", file_size,
                               " bytes do not divide into ", name(type), " tokens of ", item,
                               " bytes (", file_size % item, " left over)");
  return file_size / item;
}

}  // namespace aegis
