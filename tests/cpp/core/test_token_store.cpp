#include "core/token_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <sstream>

#include "temp_file.h"

namespace aegis {
namespace {

template <class T>
std::vector<T> counting(size_t n, T first) {
  std::vector<T> items(n);
  std::iota(items.begin(), items.end(), first);
  return items;
}

template <class T>
std::vector<T> tokens_of(const TokenStore& store, size_t segment) {
  const auto [begin, tokens] = store.segments()[segment];
  const T* first = static_cast<const T*>(store.data()) + begin;
  return {first, first + tokens};
}

TEST(TokenStore, OneFileIsTheArena) {
  const TempFolder folder;
  const auto items = counting<uint16_t>(5000, 7);
  const TokenStore store({{folder.write("a", items), TokenType::u16, 0, 5000}});
  EXPECT_EQ(store.extent(), 5000);
  EXPECT_EQ(store.tokens(), 5000);
  EXPECT_EQ(tokens_of<uint16_t>(store, 0), items);
}

TEST(TokenStore, ManyFilesShareOneBase) {
  const TempFolder folder;
  std::vector<TokenFile> files;
  std::vector<std::vector<int32_t>> items;
  const int64_t skips[] = {0, 1, 1024, 2000, 257};
  for (int i = 0; i < 5; ++i) {
    items.push_back(counting<int32_t>(1000 + 700 * i, 10000 * i));
    std::vector<int32_t> padded(static_cast<size_t>(skips[i]), -1);
    padded.insert(padded.end(), items[i].begin(), items[i].end());
    files.push_back({folder.write(std::to_string(i), padded), TokenType::i32, skips[i] * 4,
                     static_cast<int64_t>(items[i].size())});
  }
  const TokenStore store(files);
  EXPECT_EQ(store.segments()[0].begin, 0);
  for (size_t i = 0; i < items.size(); ++i) EXPECT_EQ(tokens_of<int32_t>(store, i), items[i]);
  EXPECT_EQ(store.tokens(), 5 * 1000 + 700 * 10);
  EXPECT_EQ(store.extent(), store.segments()[4].begin + 3800);
}

TEST(TokenStore, OtherByteOrderIsSwapped_case51) {
  const TempFolder folder;
  const std::string plain = folder.write("plain", counting<uint16_t>(3000, 1));
  std::vector<uint16_t> u16 = counting<uint16_t>(3000, 1);
  for (uint16_t& token : u16) token = __builtin_bswap16(token);
  const TokenStore pair({{plain, TokenType::u16, 0, 3000},
                         {folder.write("u16", u16), TokenType::u16, 2, 2999, true}});
  EXPECT_EQ(tokens_of<uint16_t>(pair, 0), counting<uint16_t>(3000, 1));
  EXPECT_EQ(tokens_of<uint16_t>(pair, 1), counting<uint16_t>(2999, 2));

  std::vector<int64_t> i64 = counting<int64_t>(10, -5);
  for (int64_t& token : i64) token = static_cast<int64_t>(__builtin_bswap64(token));
  const TokenStore wide({{folder.write("i64", i64), TokenType::i64, 0, 10, true}});
  EXPECT_EQ(tokens_of<int64_t>(wide, 0), counting<int64_t>(10, -5));
}

TEST(TokenStore, OffsetsBeyondFourGigabytes_case47_case48) {
  const TempFolder folder;
  const int64_t tokens = int64_t{5} << 30;
  const std::string path = folder.sparse("big", static_cast<uint64_t>(tokens) + 4096);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + tokens - 1);
    file.put(77);
  }
  const TokenStore store({{path, TokenType::u8, 4096, tokens},
                          {folder.write("small", counting<uint8_t>(10, 1)), TokenType::u8, 0, 10}});
  const auto* data = static_cast<const uint8_t*>(store.data());
  EXPECT_EQ(data[tokens - 1], 77);
  EXPECT_EQ(store.segments()[1].begin, int64_t{5} << 30);
  EXPECT_EQ(tokens_of<uint8_t>(store, 1), counting<uint8_t>(10, 1));
}

/// The flags the kernel keeps for the mapping that begins at `address`.
std::string kernel_flags(const void* address) {
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(address) << '-';
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    here = here || line.starts_with(begin.str());
    if (here && line.starts_with("VmFlags:")) return line;
  }
  return "";
}

TEST(TokenStore, ReadsWhatIsAnnouncedAndNothingAhead) {
  const TempFolder folder;
  const int64_t block = TokenStore::kReadBlock;
  const TokenStore store({{folder.sparse("a", 64 * block), TokenType::u8, 0, 64 * block}});
  EXPECT_TRUE(contains(kernel_flags(store.data()), " rr"));  // MADV_RANDOM
  store.will_read(0, 1);
  store.will_read(64 * block - 1, 1);  // up to the very end
  store.will_read(5 * block - 10, 20);
  EXPECT_NO_THROW(store.verify_all());
}

TEST(TokenStore, WritesStayInThisProcess) {
  const TempFolder folder;
  const std::string path = folder.write("a", counting<uint8_t>(100, 0));
  const TokenStore store({{path, TokenType::u8, 0, 100}});
  *static_cast<uint8_t*>(const_cast<void*>(store.data())) = 99;
  EXPECT_EQ(std::ifstream(path, std::ios::binary).get(), 0);
}

TEST(TokenStore, CutFileIsNamedByVerify_case49_case50) {
  const TempFolder folder;
  const std::string kept = folder.write("kept", counting<uint16_t>(9000, 1));
  const std::string cut = folder.write("cut", counting<uint16_t>(9000, 1));
  const TokenStore store({{kept, TokenType::u16, 0, 9000}, {cut, TokenType::u16, 0, 9000}});
  store.verify_all();
  std::filesystem::resize_file(cut, 17000);  // within the last page: nothing will fault
  store.verify(0);
  const std::string message = message_of<std::runtime_error>([&] { store.verify(1); });
  EXPECT_TRUE(contains(message, cut + ": expected 18000 bytes, found 17000"));
  message_of<std::runtime_error>([&] { store.verify_all(); });
}

TEST(TokenStore, FileCutForAWhileIsStillReported_case50) {
  const TempFolder folder;
  const std::string path = folder.write("a", counting<uint16_t>(9000, 1));
  const TokenStore store({{path, TokenType::u16, 0, 9000}});
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(tokens_of<uint16_t>(store, 0), std::vector<uint16_t>(9000, 0));
  std::filesystem::resize_file(path, 18000);
  EXPECT_TRUE(contains(message_of<std::runtime_error>([&] { store.verify(0); }),
                       path + ": expected 18000 readable bytes"));
}

TEST(TokenStore, ReplacedFileIsNoError) {
  const TempFolder folder;
  const std::string path = folder.write("a", counting<uint16_t>(9000, 1));
  const TokenStore store({{path, TokenType::u16, 0, 9000}});
  std::filesystem::rename(folder.write("b", counting<uint16_t>(10, 1)), path);
  store.verify_all();
  EXPECT_EQ(tokens_of<uint16_t>(store, 0), counting<uint16_t>(9000, 1));
}

TEST(TokenStore, ManyFilesUseNoDescriptorsAndAreStillVerified_case49) {
  const TempFolder folder;
  const auto descriptors = [] {
    using Folder = std::filesystem::directory_iterator;
    return std::distance(Folder("/proc/self/fd"), Folder());
  };
  std::vector<TokenFile> files;
  for (size_t i = 0; i <= TokenStore::kMaxDescriptors; ++i) {
    files.push_back(
        {folder.write(std::to_string(i), counting<uint8_t>(10, i)), TokenType::u8, 0, 10});
  }
  const auto before = descriptors();
  const TokenStore store(files);
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(tokens_of<uint8_t>(store, 128), counting<uint8_t>(10, 128));
  store.verify_all();
  std::filesystem::rename(folder.write("new", counting<uint8_t>(3, 0)), files[4].path);
  std::filesystem::remove(files[5].path);
  store.verify_all();
  std::filesystem::resize_file(files[7].path, 9);
  EXPECT_TRUE(contains(message_of<std::runtime_error>([&] { store.verify_all(); }),
                       files[7].path + ": expected 10 bytes, found 9"));
}

TEST(TokenStore, WrongDescriptionsAreRefused) {
  const TempFolder folder;
  const std::string path = folder.write("a", counting<uint16_t>(100, 1));
  const auto refusal = [](std::vector<TokenFile> files) {
    return message_of<std::invalid_argument>([&] { TokenStore store(std::move(files)); });
  };
  const TokenFile good{path, TokenType::u16, 0, 100};
  EXPECT_TRUE(contains(refusal({}), "files: expected at least one"));
  EXPECT_TRUE(contains(refusal({good, {path, TokenType::u32, 0, 50}}),
                       path + ": expected dtype uint16, as in " + path + ", got uint32"));
  EXPECT_TRUE(contains(refusal({{path, TokenType::u16, 0, 0}}), "expected at least 1 token"));
  EXPECT_TRUE(contains(refusal({{path, TokenType::u16, -2, 10}}), "got byte offset -2"));
  EXPECT_TRUE(contains(refusal({{path, TokenType::u16, 2, 100}}),
                       "expected at least 202 bytes (100 tokens of uint16 from byte 2), got 200"));
  EXPECT_TRUE(contains(refusal({{path, TokenType::i64, 0, INT64_MAX / 4}}), "more than a file"));
}

TEST(TokenStore, TokensThatAreNotAlignedAreCopied) {
  const TempFolder folder;
  std::vector<uint8_t> bytes(4 + 3 * sizeof(int64_t));
  const std::vector<int64_t> items{5, -6, int64_t{1} << 40};
  std::memcpy(bytes.data() + 4, items.data(), 3 * sizeof(int64_t));
  const std::string path = folder.write("a", bytes);
  const TokenStore store({{path, TokenType::i64, 4, 3}, {path, TokenType::i64, 4, 2}});
  EXPECT_EQ(tokens_of<int64_t>(store, 0), items);
  EXPECT_EQ(tokens_of<int64_t>(store, 1), (std::vector<int64_t>{5, -6}));
  std::filesystem::resize_file(path, 4);
  store.verify_all();  // what was read is kept
}

TEST(TokenStore, EmptyAndShortFilesAreRefused_case49) {
  const TempFolder folder;
  const std::string path = folder.write("empty", std::vector<uint8_t>{});
  EXPECT_TRUE(contains(
      message_of<std::invalid_argument>([&] { TokenStore({{path, TokenType::u8, 0, 1}}); }),
      path + ": expected at least 1 bytes"));
}

TEST(TokenStore, WhatTheSystemRefusesIsNamed) {
  const TempFolder folder;
  const auto refusal = [](const std::string& path) {
    return message_of<std::runtime_error>([&] { TokenStore({{path, TokenType::u8, 0, 1}}); });
  };
  EXPECT_TRUE(contains(refusal(folder.path("none")), "none: could not open: No such file"));
  EXPECT_TRUE(contains(refusal(folder.path("")), "expected a file, got a directory"));
  EXPECT_TRUE(contains(refusal("/dev/null"), "/dev/null: expected a file, got something else"));
}

}  // namespace
}  // namespace aegis
