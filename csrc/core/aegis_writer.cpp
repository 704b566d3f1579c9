#include "core/aegis_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/id_scan.h"

namespace aegis {
namespace {

constexpr size_t kConverted = 16 << 10;  // tokens converted at a time

int64_t largest_of(TokenType type) {
  return with_token_type(type, []<class Token>(std::type_identity<Token>) {
    return static_cast<int64_t>(std::numeric_limits<Token>::max());
  });
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

AegisWriter::AegisWriter(std::string path, TokenType type)
    : path_(std::move(path)), type_(type), owner_(getpid()), temporary_(path_ + ".XXXXXX") {
  block_.reserve(kAegisBlock);
  fd_ = Descriptor(mkostemp(temporary_.data(), O_CLOEXEC));
  if (!fd_) temporary_.clear();
  check<std::runtime_error>(static_cast<bool>(fd_), path_,
                            ": could not make a file beside it: ", std::strerror(errno));
}

AegisWriter::~AegisWriter() { remove_temporary(); }

void AegisWriter::remove_temporary() {
  if (!temporary_.empty() && getpid() == owner_) unlink(temporary_.c_str());
  temporary_.clear();
}

/// For what the system may refuse: a disk that is full gets its room back at once.
void AegisWriter::require(bool ok, const char* what) {
  if (ok) return;
  const int error = errno;
  failed_ = true;
  remove_temporary();
  fd_ = Descriptor();
  check<std::runtime_error>(false, path_, ": could not ", what, ": ", std::strerror(error));
}

void AegisWriter::add(TokenType type, const void* tokens, int64_t count) {
  check_open();
  if (count <= 0) return;
  const int64_t limit = largest_of(type_);
  const IdScan ids = scan_ids(type, tokens, count);
  check<std::invalid_argument>(ids.smallest >= 0 && ids.largest <= limit, path_,
                               ": expected ids from 0 to ", limit, " (", name(type_), "), got ",
                               ids.smallest < 0 ? ids.smallest : ids.largest, " within tokens ",
                               tokens_, " to ", tokens_ + count - 1);
  if (type == type_) {
    put(static_cast<const std::byte*>(tokens), static_cast<size_t>(count) * size_of(type));
  } else {
    with_token_type(type, [&]<class From>(std::type_identity<From>) {
      with_token_type(type_, [&]<class To>(std::type_identity<To>) {
        const auto* from = static_cast<const From*>(tokens);
        std::array<To, kConverted> to;
        for (int64_t done = 0; done < count;) {
          const auto now = std::min<int64_t>(count - done, std::ssize(to));
          std::transform(from + done, from + done + now, to.begin(),
                         [](From id) { return static_cast<To>(id); });
          put(reinterpret_cast<const std::byte*>(to.data()), static_cast<size_t>(now) * sizeof(To));
          done += now;
        }
      });
    });
  }
  tokens_ += count;
  largest_ = std::max(largest_, ids.largest);
}

void AegisWriter::end_documents(std::span<const int64_t> ends) {
  check_open();
  int64_t before = offsets_.back();
  for (int64_t end : ends) {
    check<std::invalid_argument>(before <= end && end <= tokens_, path_,
                                 ": expected the end of document ", offsets_.size() - 1, " from ",
                                 before, " to ", tokens_, ", got ", end);
    before = end;
  }
  offsets_.insert(offsets_.end(), ends.begin(), ends.end());
}

void AegisWriter::finish(uint64_t vocab_size, const std::array<uint8_t, 32>& tokenizer) {
  check_open();
  const uint64_t documents = offsets_.size() - 1;
  check<std::invalid_argument>(documents == 0 || offsets_.back() == tokens_, path_,
                               ": expected the last document to end at token ", tokens_, ", got ",
                               offsets_.back());
  const bool inside = vocab_size == 0 || static_cast<uint64_t>(largest_) < vocab_size;
  check<std::invalid_argument>(inside, path_, ": expected ids below the vocabulary's size ",
                               vocab_size, ", the largest is ", largest_);
  pad();
  if (documents > 0) {
    const auto bytes = std::as_bytes(std::span(offsets_));
    put(bytes.data(), bytes.size());
    pad();
  }
  flush_block();

  AegisHeader header{};
  header.magic = kAegisMagic;
  header.version = 1;
  header.byte_order = kAegisByteOrder;
  lay_out(header, type_, static_cast<uint64_t>(tokens_), documents);
  header.vocab_size = vocab_size;
  header.largest_id = static_cast<uint64_t>(largest_);
  header.tokenizer = tokenizer;
  const auto table = std::as_bytes(std::span(checksums_));
  header.table_checksum = aegis_checksum(table);
  header.header_checksum = aegis_checksum(
      std::as_bytes(std::span(&header, 1)).first(offsetof(AegisHeader, header_checksum)));
  write_all(table.data(), table.size(), static_cast<int64_t>(header.checksums_at));
  write_all(&header, sizeof header, 0);

  require(fchmod(fd_.get(), 0644) == 0 && fsync(fd_.get()) == 0, "write it to disk");
  require(rename(temporary_.c_str(), path_.c_str()) == 0, "give the finished file its name");
  temporary_.clear();
  fd_ = Descriptor();
  // The new name, too, is to survive a power cut.
  const Descriptor folder(open(folder_of(path_).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  require(folder && fsync(folder.get()) == 0, "write its folder to disk");
}

void AegisWriter::put(const std::byte* bytes, size_t count) {
  while (count > 0) {
    const size_t now = std::min(count, kAegisBlock - block_.size());
    block_.insert(block_.end(), bytes, bytes + now);
    bytes += now;
    count -= now;
    if (block_.size() == kAegisBlock) flush_block();
  }
}

void AegisWriter::pad() {
  // Blocks begin at a multiple of 64 bytes, and 64 divides them.
  static constexpr std::byte kZeroes[kAegisAlignment]{};
  put(kZeroes, (kAegisAlignment - block_.size() % kAegisAlignment) % kAegisAlignment);
}

void AegisWriter::flush_block() {
  if (block_.empty()) return;
  checksums_.push_back(aegis_checksum(block_));
  write_all(block_.data(), block_.size(), static_cast<int64_t>(sizeof(AegisHeader)) + written_);
  written_ += static_cast<int64_t>(block_.size());
  block_.clear();
}

void AegisWriter::write_all(const void* bytes, size_t count, int64_t offset) {
  const auto* from = static_cast<const std::byte*>(bytes);
  for (size_t done = 0; done < count;) {
    const ssize_t now = pwrite(fd_.get(), from + done, count - done,
                               static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (now < 0 && errno == EINTR) continue;
    require(now >= 0, "write");
    done += static_cast<size_t>(now);
  }
}

void AegisWriter::check_open() const {
  check<std::logic_error>(static_cast<bool>(fd_), path_, ": the writer has ",
                          failed_ ? "failed" : "finished");
}

}  // namespace aegis
