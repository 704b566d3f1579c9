#include "core/token_index.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "core/byte_source.h"
#include "temp_file.h"

namespace aegis {
namespace {

using Bytes = std::vector<std::byte>;
using Refused = std::invalid_argument;

template <class T>
void append(Bytes& bytes, const T& value) {
  for (std::byte byte : std::as_bytes(std::span(&value, 1))) bytes.push_back(byte);
}

template <class T>
void put(Bytes& bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// Three sequences of 3, 4 and 2 uint16 tokens, in two documents.
Bytes megatron() {
  Bytes bytes;
  for (char letter : {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'}) append(bytes, letter);
  append(bytes, uint64_t{1});
  append(bytes, uint8_t{8});
  append(bytes, uint64_t{3});
  append(bytes, uint64_t{3});
  for (int32_t length : {3, 4, 2}) append(bytes, length);
  for (int64_t pointer : {0, 6, 14}) append(bytes, pointer);
  for (int64_t boundary : {0, 1, 3}) append(bytes, boundary);
  return bytes;
}

TokenIndex read(const Bytes& bytes, int64_t size = 18, DocumentOffsets* offsets = nullptr) {
  return read_megatron_index(MemorySource("a.idx", bytes), size, "a.bin", offsets);
}

TEST(MegatronIndex, IsRead) {
  DocumentOffsets offsets;
  const TokenIndex found = read(megatron(), 18, &offsets);
  EXPECT_EQ(found.type, TokenType::u16);
  EXPECT_EQ(found.tokens, 9);
  EXPECT_EQ(found.documents, 2);
  EXPECT_EQ(offsets, (DocumentOffsets{0, 3, 9}));
}

TEST(MegatronIndex, EveryTruncationIsRefused_case49) {
  const Bytes whole = megatron();
  for (size_t size = 0; size < whole.size(); ++size) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_THROW(read(part), Refused) << size;
  }
}

TEST(MegatronIndex, EveryNumberOfTheHeaderIsChecked_case47) {
  for (size_t at : {0u, 9u, 18u, 26u}) {
    for (uint64_t number : {uint64_t{0}, uint64_t{2}, uint64_t{1} << 31, uint64_t{1} << 61,
                            uint64_t{1} << 63, UINT64_MAX}) {
      Bytes bytes = megatron();
      put(bytes, at, number);
      EXPECT_THROW(read(bytes), Refused) << at << ' ' << number;
    }
  }
  for (uint8_t code : {0, 1, 2, 3, 4, 5, 6, 7, 9, 255}) {
    Bytes bytes = megatron();
    put(bytes, 17, code);
    EXPECT_THROW(read(bytes), Refused) << static_cast<int>(code);
  }
}

TEST(MegatronIndex, SequencesAndDocumentsThatLieAreRefused_case47) {
  for (size_t at : {34u, 38u, 42u}) {
    for (int32_t length : {-1, 5, INT32_MAX, INT32_MIN}) {
      Bytes bytes = megatron();
      put(bytes, at, length);
      EXPECT_THROW(read(bytes), Refused) << at << ' ' << length;
    }
  }
  for (size_t at = 46; at < megatron().size(); at += 8) {
    for (int64_t number : {int64_t{-1}, int64_t{5}, INT64_MAX, INT64_MIN}) {
      Bytes bytes = megatron();
      put(bytes, at, number);
      EXPECT_THROW(read(bytes), Refused) << at << ' ' << number;
    }
  }
  EXPECT_THROW(read(megatron(), 17), Refused);
  EXPECT_THROW(read(megatron(), 20), Refused);
}

Bytes ends_of(std::initializer_list<uint64_t> ends) {
  Bytes bytes;
  for (uint64_t end : ends) append(bytes, end);
  return bytes;
}

TEST(DatatroveIndex, SizeOfATokenFollowsFromTheFile_case45) {
  const Bytes index = ends_of({3, 3, 9});
  const MemorySource source("a.ds.index", index);
  DocumentOffsets offsets;
  EXPECT_EQ(read_datatrove_index(source, 18, "a.ds").type, TokenType::u16);
  EXPECT_EQ(read_datatrove_index(source, 36, "a.ds", &offsets).type, TokenType::u32);
  EXPECT_EQ(offsets, (DocumentOffsets{0, 3, 3, 9}));
  for (int64_t size : {0, 9, 17, 19, 72}) {
    EXPECT_THROW(read_datatrove_index(source, size, "a.ds"), Refused) << size;
  }
}

TEST(DatatroveIndex, EndsThatDescendOrOverflowAreRefused_case48) {
  auto refuses = [](std::initializer_list<uint64_t> ends, int64_t size) {
    const Bytes bytes = ends_of(ends);
    EXPECT_THROW(read_datatrove_index(MemorySource("i", bytes), size, "a.ds"), Refused);
  };
  refuses({5, 3, 9}, 18);
  refuses({10, 9}, 18);
  refuses({UINT64_MAX, 9}, 18);
  refuses({(uint64_t{1} << 63) + 9}, 18);  // twice it is 18, modulo 2^64
  refuses({(uint64_t{1} << 62) + 9}, 36);
  refuses({0}, 0);
  refuses({}, 18);
}

TEST(LitdataChunk, IsReadAndEveryOffsetChecked_case46) {
  Bytes bytes;
  for (uint32_t number : {2, 16, 28, 36}) append(bytes, number);
  bytes.resize(36);
  DocumentOffsets offsets;
  const TokenIndex found = read_litdata_chunk(MemorySource("c", bytes), TokenType::i32, &offsets);
  EXPECT_EQ(found.byte_offset, 16);
  EXPECT_EQ(found.tokens, 5);
  EXPECT_EQ(offsets, (DocumentOffsets{0, 3, 5}));
  for (size_t at : {0u, 4u, 8u, 12u}) {
    for (uint32_t number : {0u, 1u, 27u, 37u, 40u, UINT32_MAX}) {
      Bytes changed = bytes;
      put(changed, at, number);
      EXPECT_THROW(read_litdata_chunk(MemorySource("c", changed), TokenType::i32), Refused)
          << at << ' ' << number;
    }
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Bytes part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_THROW(read_litdata_chunk(MemorySource("c", part), TokenType::i32), Refused) << size;
  }
}

TEST(ByteSource, FileAndMemoryAreAlike) {
  const TempFolder folder;
  std::vector<uint32_t> numbers(10'000);
  std::iota(numbers.begin(), numbers.end(), 0u);
  const FileSource file(folder.write("a", numbers));
  const MemorySource memory("m", std::as_bytes(std::span(numbers)));
  EXPECT_EQ(file.size(), memory.size());
  Column<uint32_t> ours(file, 4, 9999), theirs(memory, 4, 9999);
  for (int64_t i : {0, 1, 4095, 4096, 9998, 3, 9998}) {
    EXPECT_EQ(ours[i], numbers[static_cast<size_t>(i) + 1]);
    EXPECT_EQ(theirs[i], ours[i]);
  }
  EXPECT_EQ(file.read<uint32_t>(39'996), 9999u);
  EXPECT_THROW(file.read<uint32_t>(39'997), Refused);
  EXPECT_THROW(file.read<uint32_t>(-1), Refused);
  EXPECT_THROW(Column<uint32_t>(file, 8, 9999), Refused);
  EXPECT_THROW(Column<uint32_t>(memory, 0, UINT64_MAX), Refused);
  EXPECT_THROW(Column<uint64_t>(memory, 8, (uint64_t{1} << 61) + 1), Refused);
}

TEST(ByteSource, FileCutShortMeanwhileIsAnError_case50) {
  const TempFolder folder;
  const std::string path = folder.write("a", std::vector<uint8_t>(100));
  const FileSource file(path);
  std::filesystem::resize_file(path, 50);
  EXPECT_TRUE(contains(message_of<std::runtime_error>([&] { file.read<uint64_t>(48); }),
                       "expected 100 bytes, the file ended at 50"));
  EXPECT_TRUE(contains(message_of<std::runtime_error>([&] { FileSource(folder.path("none")); }),
                       "none: could not open"));
  EXPECT_TRUE(contains(message_of<std::runtime_error>([&] { FileSource(folder.path("")); }),
                       "expected a file, got a directory"));
}

}  // namespace
}  // namespace aegis
