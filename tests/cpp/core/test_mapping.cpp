#include "core/mapping.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "temp_file.h"

namespace aegis {
namespace {

size_t resident_pages(const Mapping& mapping) {
  std::vector<unsigned char> pages(mapping.size() / page_size());
  EXPECT_EQ(mincore(mapping.data(), mapping.size(), pages.data()), 0);
  return static_cast<size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

TEST(Mapping, RoundsUpToPagesOfZeroes) {
  const Mapping mapping(page_size() + 1);
  EXPECT_EQ(mapping.size(), 2 * page_size());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping.data()) % page_size(), 0u);
  EXPECT_TRUE(std::all_of(mapping.data(), mapping.data() + mapping.size(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_EQ(mapping.huge_pages(), HugePages::none);
  EXPECT_EQ(mapping.fd(), -1);
}

TEST(Mapping, PrefaultIsWhatMakesPagesResident) {
  EXPECT_EQ(resident_pages(Mapping(64 * page_size())), 64u);
  EXPECT_EQ(resident_pages(Mapping(64 * page_size(), {.prefault = false})), 0u);
}

TEST(Mapping, HugePagesAreAlignedAndSayWhatTheyAre) {
  Mapping mapping(3 << 20, {.huge_pages = true});
  EXPECT_EQ(mapping.size(), size_t{4} << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping.data()) % (2 << 20), 0u);
  mapping.data()[mapping.size() - 1] = std::byte{1};
}

TEST(Mapping, SharedMemoryIsSeenThroughItsDescriptor) {
  for (bool huge : {false, true}) {
    Mapping mapping(page_size(), {.huge_pages = huge, .shared = true});
    ASSERT_GE(mapping.fd(), 0);
    struct stat found{};
    ASSERT_EQ(fstat(mapping.fd(), &found), 0);
    EXPECT_EQ(static_cast<size_t>(found.st_size), mapping.size());
    mapping.data()[7] = std::byte{42};
    void* other = mmap(nullptr, mapping.size(), PROT_READ, MAP_SHARED, mapping.fd(), 0);
    ASSERT_NE(other, MAP_FAILED);
    EXPECT_EQ(static_cast<std::byte*>(other)[7], std::byte{42});
    munmap(other, mapping.size());
  }
}

TEST(Mapping, MovesLeaveNothingBehind) {
  Mapping first(page_size(), {.shared = true});
  std::byte* const data = first.data();
  const int fd = first.fd();
  Mapping second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.fd(), fd);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT: what a move leaves is part of the contract
  Mapping third;
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
}

TEST(Mapping, GivesMemoryAndDescriptorBack) {
  int fd = -1;
  {
    const Mapping mapping(page_size(), {.shared = true});
    fd = mapping.fd();
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(Mapping, RefusesNothingAndTooMuch) {
  EXPECT_TRUE(contains(message_of<std::invalid_argument>([] { Mapping(0); }), "got 0"));
  EXPECT_TRUE(contains(message_of<std::invalid_argument>([] { Mapping(SIZE_MAX - 5); }), "2^64"));
  EXPECT_TRUE(contains(message_of<std::runtime_error>([] { Mapping(size_t{1} << 60); }),
                       "could not map 1152921504606846976 bytes"));
}

TEST(AddressRange, HoldsFilePagesAndAnonymousOnes) {
  const TempFolder folder;
  const std::string path = folder.write("file", std::vector<char>(page_size() * 2, 'x'));
  AddressRange range(3 * page_size());
  const Descriptor fd(open(path.c_str(), O_RDONLY));
  ASSERT_EQ(range.map_file(0, page_size(), fd.get(), page_size()), 0);
  ASSERT_EQ(range.map_anonymous(page_size(), page_size()), 0);
  EXPECT_EQ(range.data()[5], std::byte{'x'});
  EXPECT_EQ(range.data()[page_size()], std::byte{0});
  range.data()[5] = std::byte{'y'};  // a private page: the file keeps its own
  char kept = 0;
  ASSERT_EQ(pread(fd.get(), &kept, 1, static_cast<off_t>(page_size()) + 5), 1);
  EXPECT_EQ(kept, 'x');
}

TEST(AddressRange, SaysWhyAFileCannotBeMapped) {
  AddressRange range(page_size());
  EXPECT_EQ(range.map_file(0, page_size(), -1, 0), EBADF);
}

TEST(AddressRange, RefusesMoreThanTheAddressSpace) {
  EXPECT_TRUE(contains(message_of<std::runtime_error>([] { AddressRange(size_t{1} << 60); }),
                       "could not reserve"));
}

}  // namespace
}  // namespace aegis
