#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "core/aegis_header.h"
#include "core/aegis_writer.h"
#include "core/id_scan.h"
#include "core/parallel.h"
#include "temp_file.h"

namespace aegis {
namespace {

using Bytes = std::vector<std::byte>;
using Refused = std::invalid_argument;

constexpr std::array<uint8_t, 32> kHash{1, 2, 3};

Bytes bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> all{std::istreambuf_iterator<char>(file), {}};
  const auto view = std::as_bytes(std::span(all));
  return {view.begin(), view.end()};
}

/// A file of `count` tokens i % 251 as uint16, in documents of 100.
std::string write_file(const TempFolder& folder, int64_t count) {
  const std::string path = folder.path("a.aegis");
  AegisWriter writer(path, TokenType::u16);
  for (int64_t begin = 0; begin < count; begin += 100) {
    std::vector<int64_t> tokens;
    for (int64_t i = begin; i < std::min(begin + 100, count); ++i) tokens.push_back(i % 251);
    writer.add(TokenType::i64, tokens.data(), std::ssize(tokens));
    writer.end_documents(std::array{writer.tokens()});
  }
  writer.finish(1000, kHash);
  return path;
}

AegisHeader header_of(const Bytes& bytes) {
  return *read_aegis_header(bytes, static_cast<int64_t>(bytes.size()), "a");
}

void verify(const Bytes& bytes, int threads = 1) {
  verify_aegis_file(MemorySource("a", bytes), threads);
}

TEST(AegisFile, IsReadAsItWasWritten) {
  const TempFolder folder;
  const Bytes bytes = bytes_of(write_file(folder, 1'000'050));
  const AegisHeader header = header_of(bytes);
  EXPECT_EQ(header.tokens, 1'000'050u);
  EXPECT_EQ(header.documents, 10'001u);
  EXPECT_EQ(header.largest_id, 250u);
  EXPECT_EQ(header.vocab_size, 1000u);
  EXPECT_EQ(header.tokenizer, kHash);
  EXPECT_EQ(aegis_dtype(header.dtype), TokenType::u16);
  for (uint64_t at : {header.tokens_at, header.documents_at, header.checksums_at}) {
    EXPECT_EQ(at % kAegisAlignment, 0u);
  }
  std::vector<uint16_t> tokens(header.tokens);
  std::memcpy(tokens.data(), bytes.data() + header.tokens_at, 2 * tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) ASSERT_EQ(tokens[i], i % 251);
  const DocumentOffsets offsets = read_aegis_documents(MemorySource("a", bytes));
  ASSERT_EQ(offsets.size(), 10'002u);
  EXPECT_EQ(offsets[1], 100);
  EXPECT_EQ(offsets.back(), 1'000'050);
  verify(bytes, 3);
}

TEST(AegisFile, EveryDamagedByteIsFound) {
  const TempFolder folder;
  const Bytes whole = bytes_of(write_file(folder, 350));
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit : {0, 7}) {
      Bytes damaged = whole;
      damaged[at] ^= std::byte(1 << bit);
      EXPECT_THROW(verify(damaged), Refused) << at;
    }
  }
}

TEST(AegisFile, EveryTruncationIsFound_case49) {
  const TempFolder folder;
  const Bytes whole = bytes_of(write_file(folder, 350));
  for (size_t size = 0; size < whole.size(); ++size) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_THROW(verify(part), Refused) << size;
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THROW(header_of(longer), Refused);
}

/// A change of the header, made with the right checksum, must be refused with this message.
template <class T>
void expect_refused(Bytes bytes, T AegisHeader::* field, T value, const char* message) {
  AegisHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.*field = value;
  header.header_checksum =
      aegis_checksum(std::as_bytes(std::span(&header, 1)).first(sizeof header - 4));
  std::memcpy(bytes.data(), &header, sizeof header);
  EXPECT_TRUE(contains(message_of<Refused>([&] { verify(bytes); }), message));
}

TEST(AegisFile, HeadersThatLieAreRefused_case47) {
  const TempFolder folder;
  const Bytes bytes = bytes_of(write_file(folder, 350));
  using H = AegisHeader;
  expect_refused(bytes, &H::version, 2u, "expected aegis version 1, got 2");
  expect_refused(bytes, &H::byte_order, 0x04030201u, "this one is big-endian");
  expect_refused(bytes, &H::byte_order, 7u, "expected byte-order mark");
  expect_refused(bytes, &H::dtype, uint8_t{0}, "expected a dtype code from 1 to 5, got 0");
  expect_refused(bytes, &H::dtype, uint8_t{6}, "got 6");
  expect_refused(bytes, &H::dtype, uint8_t{1}, "expected documents at byte");
  expect_refused(bytes, &H::reserved, std::array<uint8_t, 3>{0, 1}, "expected zeroes");
  expect_refused(bytes, &H::reserved_too, std::array<uint8_t, 56>{1}, "expected zeroes");
  expect_refused(bytes, &H::block_bytes, 64u, "expected blocks of bytes: 1048576");
  expect_refused(bytes, &H::header_bytes, uint64_t{128}, "expected a header of bytes: 192");
  expect_refused(bytes, &H::tokens, UINT64_MAX, "bytes cannot hold");
  expect_refused(bytes, &H::tokens, uint64_t{1} << 63, "bytes cannot hold");
  expect_refused(bytes, &H::tokens, uint64_t{300}, "expected documents at byte 832");
  expect_refused(bytes, &H::documents, uint64_t{1} << 61, "bytes cannot hold");
  expect_refused(bytes, &H::documents, uint64_t{0}, "expected documents at byte 0");
  expect_refused(bytes, &H::documents, uint64_t{12}, "expected checksums at byte");
  expect_refused(bytes, &H::tokens_at, uint64_t{0}, "expected tokens at byte 192");
  expect_refused(bytes, &H::checksums_at, UINT64_MAX, "expected checksums at byte");
  expect_refused(bytes, &H::file_bytes, uint64_t{1} << 40, "expected a file of bytes:");
  expect_refused(bytes, &H::largest_id, uint64_t{70'000}, "expected a largest id within uint16");
  expect_refused(bytes, &H::largest_id, uint64_t{1000}, "the header says 1000 (vocabulary 1000)");
  expect_refused(bytes, &H::largest_id, uint64_t{251}, "expected the largest id to be 251");
  expect_refused(bytes, &H::vocab_size, uint64_t{250}, "(vocabulary 250)");
  expect_refused(bytes, &H::table_checksum, 1u, "the table of checksums is damaged");
}

TEST(AegisFile, DocumentsThatDoNotAscendAreRefused) {
  const TempFolder folder;
  const Bytes whole = bytes_of(write_file(folder, 350));
  const uint64_t at = header_of(whole).documents_at;
  for (auto [index, value] : {std::pair<size_t, int64_t>{0, 1},
                              {1, 201},
                              {2, 99},
                              {2, -1},
                              {3, 351},
                              {4, 349},
                              {4, INT64_MAX}}) {
    Bytes bytes = whole;
    std::memcpy(bytes.data() + at + 8 * index, &value, 8);
    EXPECT_THROW(read_aegis_documents(MemorySource("a", bytes)), Refused) << index << ' ' << value;
  }
}

TEST(AegisFile, AnythingElseIsNotAegis) {
  EXPECT_FALSE(read_aegis_header({}, 0, "a"));
  const Bytes zeroes(500);
  EXPECT_FALSE(read_aegis_header(zeroes, 500, "a"));
  EXPECT_THROW(verify(zeroes), Refused);
}

TEST(AegisWriter, IdsNeverWrap_case44) {
  const TempFolder folder;
  AegisWriter writer(folder.path("a"), TokenType::u16);
  const std::vector<int32_t> large{1, 65'535, 70'000}, negative{1, -1};
  EXPECT_TRUE(contains(message_of<Refused>([&] { writer.add(TokenType::i32, large.data(), 3); }),
                       "a: expected ids from 0 to 65535 (uint16), got 70000 within tokens 0 to 2"));
  EXPECT_TRUE(contains(message_of<Refused>([&] { writer.add(TokenType::i32, negative.data(), 2); }),
                       "got -1"));
  EXPECT_EQ(writer.tokens(), 0);
  writer.add(TokenType::i32, large.data(), 2);
  EXPECT_EQ(writer.largest_id(), 65'535);
  EXPECT_TRUE(contains(message_of<Refused>([&] { writer.finish(65'535, kHash); }),
                       "expected ids below the vocabulary's size 65535"));
}

TEST(AegisWriter, EveryTypeIntoEveryType) {
  const TempFolder folder;
  const std::vector<int64_t> ids{0, 1, 127, 100};
  for (TokenType from :
       {TokenType::u8, TokenType::u16, TokenType::u32, TokenType::i32, TokenType::i64}) {
    for (TokenType to :
         {TokenType::u8, TokenType::u16, TokenType::u32, TokenType::i32, TokenType::i64}) {
      const std::string path = folder.path("a");
      AegisWriter writer(path, to);
      with_token_type(from, [&]<class Token>(std::type_identity<Token>) {
        const std::vector<Token> tokens(ids.begin(), ids.end());
        writer.add(from, tokens.data(), std::ssize(tokens));
      });
      writer.finish(0, {});
      const Bytes bytes = bytes_of(path);
      verify(bytes);
      with_token_type(to, [&]<class Token>(std::type_identity<Token>) {
        std::vector<Token> tokens(ids.size());
        std::memcpy(tokens.data(), bytes.data() + 192, sizeof(Token) * tokens.size());
        EXPECT_EQ(std::vector<int64_t>(tokens.begin(), tokens.end()), ids);
      });
    }
  }
}

TEST(AegisWriter, NothingIsLeftOfAFileThatWasNotFinished) {
  const TempFolder folder;
  const std::string path = folder.write("a.aegis", std::vector<uint8_t>{1, 2, 3});
  const auto entries = [&] {
    return std::distance(std::filesystem::directory_iterator(folder.path("")), {});
  };
  {
    AegisWriter writer(path, TokenType::u8);
    const uint8_t token = 5;
    writer.add(TokenType::u8, &token, 1);
    EXPECT_EQ(entries(), 2);
    const pid_t child = fork();
    if (child == 0) {
      writer.~AegisWriter();
      _exit(0);
    }
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_EQ(entries(), 2) << "the child removed its parent's file";
  }
  EXPECT_EQ(entries(), 1);
  EXPECT_EQ(bytes_of(path).size(), 3u);
  EXPECT_TRUE(contains(
      message_of<std::runtime_error>([&] { AegisWriter(folder.path("none/a"), TokenType::u8); }),
      "none/a: could not make a file beside it: No such file"));
}

TEST(AegisWriter, MisuseIsAnError) {
  const TempFolder folder;
  AegisWriter writer(folder.path("a"), TokenType::u8);
  const std::vector<uint8_t> tokens(10);
  writer.add(TokenType::u8, tokens.data(), 10);
  writer.end_documents(std::array<int64_t, 2>{4, 4});
  EXPECT_THROW(writer.end_documents(std::array<int64_t, 1>{3}), Refused);
  EXPECT_THROW(writer.end_documents(std::array<int64_t, 1>{11}), Refused);
  EXPECT_TRUE(contains(message_of<Refused>([&] { writer.finish(0, {}); }),
                       "expected the last document to end at token 10, got 4"));
  writer.end_documents(std::array<int64_t, 1>{10});
  writer.finish(0, {});
  EXPECT_THROW(writer.add(TokenType::u8, tokens.data(), 1), std::logic_error);
  const Bytes bytes = bytes_of(folder.path("a"));
  EXPECT_EQ(read_aegis_documents(MemorySource("a", bytes)), (DocumentOffsets{0, 4, 4, 10}));
}

TEST(IdScan, FindsTheFirstIdOutside_case44) {
  std::vector<int32_t> ids(5'000'000, 7);
  ids[4'200'000] = 50;
  ids[4'900'000] = -1;
  for (int threads : {1, 4}) {
    const IdScan found = scan_ids(TokenType::i32, ids.data(), std::ssize(ids), 50, threads);
    EXPECT_EQ(found.smallest, -1);
    EXPECT_EQ(found.largest, 50);
    EXPECT_EQ(found.first_outside, 4'200'000);
    EXPECT_EQ(scan_ids(TokenType::i32, ids.data(), std::ssize(ids), 51, threads).first_outside,
              4'900'000);
    EXPECT_EQ(scan_ids(TokenType::i32, ids.data(), 4'900'000, 51, threads).first_outside, -1);
  }
  const uint32_t large = UINT32_MAX;
  EXPECT_EQ(scan_ids(TokenType::u32, &large, 1).largest, int64_t{UINT32_MAX});
}

TEST(ParallelFor, EachIndexOnceAndTheFirstError) {
  std::vector<std::atomic<int>> seen(1000);
  parallel_for(1000, 4, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
  for (const auto& count : seen) EXPECT_EQ(count, 1);
  EXPECT_THROW(parallel_for(1000, 4, [](int64_t) { throw std::runtime_error("bad"); }),
               std::runtime_error);
  parallel_for(0, 4, [](int64_t) { FAIL(); });
}

}  // namespace
}  // namespace aegis
