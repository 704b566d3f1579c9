#include "core/token_index.h"

#include <array>
#include <optional>
#include <string_view>

#include "core/check.h"

namespace aegis {
namespace {

using Bad = std::invalid_argument;

/// "3 missing" or "3 too many".
std::string difference(int64_t expected, int64_t found) {
  return found < expected ? std::to_string(expected - found) + " missing"
                          : std::to_string(found - expected) + " too many";
}

// --- Megatron ------------------------------------------------------------------------------------

constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
constexpr int64_t kMegatronHeader = 34;

struct MegatronHeader {
  TokenType type;
  int64_t sequences;
  int64_t boundaries;  ///< of documents
};

TokenType megatron_type(uint8_t code, const std::string& path) {
  constexpr std::array<std::string_view, 9> kNames{"",      "uint8",   "int8",    "int16", "int32",
                                                   "int64", "float64", "float32", "uint16"};
  check<Bad>(1 <= code && code < kNames.size(), path, ": expected a dtype code from 1 to 8, got ",
             static_cast<int>(code));
  const std::optional<TokenType> type = token_type_named(kNames[code]);
  check<Bad>(type.has_value(), path,
             ": expected tokens of uint8, uint16, int32 or int64, got dtype code ",
             static_cast<int>(code), " (", kNames[code], ")");
  return *type;
}

MegatronHeader megatron_header(const ByteSource& index) {
  const std::string& path = index.path();
  check<Bad>(index.size() >= kMegatronHeader, path, ": expected a Megatron index of at least ",
             kMegatronHeader, " bytes, got ", index.size());
  std::array<char, kMegatronMagic.size()> magic;
  index.read(0, std::as_writable_bytes(std::span(magic)));
  check<Bad>(std::string_view(magic.data(), magic.size()) == kMegatronMagic, path,
             ": expected a Megatron index, which begins with MMIDIDX");
  const auto version = index.read<uint64_t>(9);
  check<Bad>(version == 1, path, ": expected Megatron index version 1, got ", version);
  const TokenType type = megatron_type(index.read<uint8_t>(17), path);

  const auto sequences = index.read<uint64_t>(18), boundaries = index.read<uint64_t>(26);
  const auto room = static_cast<uint64_t>(index.size() - kMegatronHeader);
  check<Bad>(sequences <= room / 12 && boundaries <= room / 8, path, ": the header says ",
             sequences, " sequences and ", boundaries, " document boundaries, which ", index.size(),
             " bytes cannot hold");
  const auto expected = static_cast<int64_t>(kMegatronHeader + 12 * sequences + 8 * boundaries);
  const auto modes = static_cast<int64_t>(sequences);
  check<Bad>(index.size() == expected || index.size() == expected + modes, path, ": expected ",
             expected, " bytes (header ", kMegatronHeader, ", ", sequences, " sequences of 12, ",
             boundaries, " document boundaries of 8) or, with modes, ", expected + modes, ", got ",
             index.size(), " (", difference(expected, index.size()), ")");
  return {type, static_cast<int64_t>(sequences), static_cast<int64_t>(boundaries)};
}

/// Checks that the sequences lie one behind the other and are all of the `.bin` file.
int64_t check_sequences(Column<int32_t>& lengths, Column<int64_t>& pointers, int64_t item,
                        int64_t bin_size, const std::string& bin_path, const std::string& path) {
  int64_t end = 0;  // in bytes, never above bin_size
  for (int64_t i = 0; i < lengths.size(); ++i) {
    const int64_t length = lengths[i], pointer = pointers[i];
    check<Bad>(length >= 0, path, ": expected sequence ", i, " to have a length, got ", length);
    check<Bad>(pointer == end, path, ": expected sequence ", i, " at byte ", end,
               ", behind the one before it, got byte ", pointer);
    check<Bad>(length * item <= bin_size - end, path, ": sequence ", i, " ends at byte ",
               static_cast<uint64_t>(end) + static_cast<uint64_t>(length * item), ", but ",
               bin_path, " has ", bin_size);
    end += length * item;
  }
  check<Bad>(end == bin_size, bin_path, ": expected ", end, " bytes, as ", path, " says, got ",
             bin_size, " (", difference(end, bin_size), ")");
  check<Bad>(end > 0, path, ": expected at least 1 token, got none");
  return end / item;
}

// --- offsets that ascend -------------------------------------------------------------------------

/// Checks that numbers ascend from `first` to `last`; `what` names them in messages.
template <class T>
void check_ascending(Column<T>& numbers, uint64_t first, uint64_t last, std::string_view what,
                     const std::string& path) {
  uint64_t before = first;
  for (int64_t i = 0; i < numbers.size(); ++i) {
    const auto number = static_cast<uint64_t>(numbers[i]);
    check<Bad>(before <= number && number <= last, path, ": expected ", what, " ", i, " from ",
               before, " to ", last, ", got ", numbers[i]);
    before = number;
  }
  check<Bad>(before == last, path, ": expected the last ", what, " to be ", last, ", got ", before);
}

void reserve(DocumentOffsets* offsets, int64_t count) {
  if (offsets == nullptr) return;
  offsets->clear();
  offsets->reserve(static_cast<size_t>(count));
}

}  // namespace

TokenIndex read_megatron_index(const ByteSource& index, int64_t bin_size,
                               const std::string& bin_path, DocumentOffsets* offsets) {
  const std::string& path = index.path();
  const MegatronHeader header = megatron_header(index);
  const auto item = static_cast<int64_t>(size_of(header.type));
  const auto sequences = static_cast<uint64_t>(header.sequences);
  const int64_t pointers_at = kMegatronHeader + 4 * header.sequences;
  Column<int32_t> lengths(index, kMegatronHeader, sequences);
  Column<int64_t> pointers(index, pointers_at, sequences);
  Column<int64_t> boundaries(index, pointers_at + 8 * header.sequences,
                             static_cast<uint64_t>(header.boundaries));
  const int64_t tokens = check_sequences(lengths, pointers, item, bin_size, bin_path, path);

  check<Bad>(boundaries.size() >= 2, path, ": expected at least 2 document boundaries, got ",
             boundaries.size());
  check<Bad>(boundaries[0] == 0, path, ": expected document boundary 0 to be 0, got ",
             boundaries[0]);
  check_ascending(boundaries, 0, sequences, "document boundary", path);
  if (offsets != nullptr) {
    reserve(offsets, boundaries.size());
    for (int64_t i = 0; i < boundaries.size(); ++i) {
      const int64_t sequence = boundaries[i];
      // Another process may have written to the file since it was checked.
      check<Bad>(0 <= sequence && sequence <= header.sequences, path,
                 ": changed while it was read");
      offsets->push_back(sequence == header.sequences ? tokens : pointers[sequence] / item);
    }
  }
  return {header.type, 0, tokens, boundaries.size() - 1};
}

TokenIndex read_datatrove_index(const ByteSource& index, int64_t size, const std::string& path,
                                DocumentOffsets* offsets) {
  const int64_t bytes = index.size();
  check<Bad>(bytes > 0 && bytes % 8 == 0, index.path(),
             ": expected document ends of 8 bytes, got a file of ", bytes, " bytes (", bytes % 8,
             " left over)");
  Column<uint64_t> ends(index, 0, static_cast<uint64_t>(bytes / 8));
  const uint64_t last = ends[ends.size() - 1];
  const auto room = static_cast<uint64_t>(size);
  const bool narrow = last > 0 && last <= room / 2 && last * 2 == room;
  const bool wide = last > 0 && last <= room / 4 && last * 4 == room;
  check<Bad>(narrow || wide, path, ": expected ", last, " tokens of 2 or 4 bytes, as ",
             index.path(), " says, got ", size, " bytes");
  check_ascending(ends, 0, last, "document end", index.path());
  if (offsets != nullptr) {
    reserve(offsets, ends.size() + 1);
    offsets->push_back(0);
    for (int64_t i = 0; i < ends.size(); ++i) offsets->push_back(static_cast<int64_t>(ends[i]));
  }
  return {narrow ? TokenType::u16 : TokenType::u32, 0, static_cast<int64_t>(last), ends.size()};
}

TokenIndex read_litdata_chunk(const ByteSource& chunk, TokenType type, DocumentOffsets* offsets) {
  const std::string& path = chunk.path();
  check<Bad>(chunk.size() >= 4, path, ": expected a litData chunk, got ", chunk.size(), " bytes");
  const auto items = chunk.read<uint32_t>(0);
  const int64_t header = 4 + 4 * (int64_t{items} + 1);
  check<Bad>(items >= 1 && header <= chunk.size(), path, ": the header says ", items,
             " items, which ", chunk.size(), " bytes cannot hold");
  Column<uint32_t> starts(chunk, 4, uint64_t{items} + 1);
  const auto item = static_cast<int64_t>(size_of(type));
  check<Bad>(starts[0] == header, path, ": expected the first item at byte ", header, ", got byte ",
             starts[0]);
  check_ascending(starts, static_cast<uint64_t>(header), static_cast<uint64_t>(chunk.size()),
                  "item offset", path);
  for (int64_t i = 0; i < starts.size(); ++i) {
    const int64_t left = (starts[i] - header) % item;
    check<Bad>(left == 0, path, ": expected items of whole ", name(type), " tokens, but item ",
               i - 1, " ends ", left, " bytes behind the last of them");
  }
  const int64_t tokens = (chunk.size() - header) / item;
  check<Bad>(tokens > 0, path, ": expected at least 1 token, got none");
  if (offsets != nullptr) {
    reserve(offsets, starts.size());
    for (int64_t i = 0; i < starts.size(); ++i) offsets->push_back((starts[i] - header) / item);
  }
  return {type, header, tokens, items};
}

}  // namespace aegis
