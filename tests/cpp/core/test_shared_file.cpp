#include "core/shared_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/errors.h"

namespace aegis {
namespace {

int64_t pages_of(const SharedFile& file) {
  struct stat found{};
  EXPECT_EQ(fstat(file.fd(), &found), 0);
  return found.st_blocks * 512 / static_cast<int64_t>(page_size());
}

TEST(SharedFile, RangesAreWholePagesAndNobodyElses) {
  const auto file = SharedFile::create();
  EXPECT_EQ(file->reserve(1), SharedFile::first());
  EXPECT_EQ(file->reserve(page_size() + 1), 2 * page_size());
  EXPECT_EQ(file->reserve(1), 4 * page_size());
  EXPECT_EQ(file->reserved(), 5 * page_size());
  EXPECT_EQ(pages_of(*file), 1) << "the header alone";
}

TEST(SharedFile, WhatItHasNoRoomForIsRefusedAndTakesNothing) {
  const auto file = SharedFile::create();
  for (size_t bytes : {size_t{1} << 60, size_t{1} << 63, SIZE_MAX - page_size() + 1}) {
    EXPECT_NE(message_of<std::runtime_error>([&] { file->reserve(bytes); }).find("are left"),
              std::string::npos)
        << bytes;
    EXPECT_EQ(file->reserved(), SharedFile::first());
  }
  EXPECT_THROW(file->reserve(SIZE_MAX), std::invalid_argument);
  const uint64_t rest = (uint64_t{1} << 60) - 2 * page_size();
  EXPECT_EQ(file->reserve(page_size()), SharedFile::first());
  EXPECT_EQ(file->reserve(rest), 2 * page_size());
  EXPECT_THROW(file->reserve(1), std::runtime_error);
}

TEST(SharedFile, ThreadsNeverGetTheSameRange) {
  const auto file = SharedFile::create();
  std::vector<std::vector<uint64_t>> found(4);
  std::vector<std::thread> threads;
  for (auto& mine : found) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) mine.push_back(file->reserve(page_size()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> all;
  for (const auto& mine : found) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 20'000u);
}

/// How many pages of `mapping` are in this process's page table: those cause no fault.
size_t mapped_pages(const Mapping& mapping) {
  std::vector<uint64_t> entries(mapping.size() / page_size());
  const size_t bytes = entries.size() * sizeof(uint64_t);
  const size_t first = reinterpret_cast<uintptr_t>(mapping.data()) / page_size();
  const int fd = open("/proc/self/pagemap", O_RDONLY);
  EXPECT_EQ(pread(fd, entries.data(), bytes, static_cast<off_t>(first * sizeof(uint64_t))),
            static_cast<ssize_t>(bytes));
  close(fd);
  return static_cast<size_t>(std::count_if(entries.begin(), entries.end(),
                                           [](uint64_t entry) { return (entry >> 63) != 0; }));
}

TEST(SharedFile, AMappingHasAllItsPages) {
  const auto file = SharedFile::create();
  const size_t bytes = 64 * page_size();
  const uint64_t offset = file->reserve(bytes);
  EXPECT_EQ(mapped_pages(file->map(offset, bytes)), 64u) << "made for it";
  EXPECT_EQ(mapped_pages(file->map(offset, bytes)), 64u) << "there already";
}

TEST(SharedFile, AChildWritesWhatTheParentReads) {
  const auto file = SharedFile::create();
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t offset = file->reserve(page_size());
    file->map(offset, page_size()).data()[9] = std::byte{42};
    _exit(offset == SharedFile::first() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(file->reserved(), 2 * page_size());
  EXPECT_EQ(file->map(SharedFile::first(), page_size()).data()[9], std::byte{42});
}

TEST(SharedFile, AttachedByDescriptorItIsTheSameMemory) {
  const auto file = SharedFile::create();
  const auto other = SharedFile::attach(dup(file->fd()));
  const uint64_t offset = other->reserve(page_size());
  EXPECT_EQ(file->reserved(), offset + page_size());
  other->map(offset, page_size()).data()[0] = std::byte{7};
  EXPECT_EQ(file->map(offset, page_size()).data()[0], std::byte{7});
}

TEST(SharedFile, OtherDescriptorsAreRefusedAndClosed) {
  EXPECT_THROW(SharedFile::attach(-1), std::runtime_error);
  const int fd = memfd_create("other", 0);
  try {
    SharedFile::attach(fd);
    FAIL() << "expected an exception";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()),
              "fd " + std::to_string(fd) +
                  ": expected the memory of a SharedFile, got a file of 0 bytes");
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

TEST(SharedFile, DiscardedPagesAreGoneAndReadAsZero) {
  const auto file = SharedFile::create();
  const size_t bytes = 16 * page_size();
  const uint64_t offset = file->reserve(bytes);
  const Mapping mapping = file->map(offset, bytes);
  mapping.data()[0] = std::byte{1};
  EXPECT_EQ(pages_of(*file), 17);
  file->discard(offset, bytes);
  EXPECT_EQ(pages_of(*file), 1);
  EXPECT_EQ(mapping.data()[0], std::byte{0});
}

TEST(SharedFile, NoMemoryIsAnError) {
  const auto file = SharedFile::create();
  EXPECT_THROW(file->map(SharedFile::first(), size_t{1} << 60), std::runtime_error);
  EXPECT_THROW(file->reserve(SIZE_MAX), std::invalid_argument);
}

}  // namespace
}  // namespace aegis
