// Writes token files of format aegis v1: docs/notes/aegis_v1.md.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/aegis_header.h"
#include "core/descriptor.h"
#include "core/dtype.h"

namespace aegis {

/// Writes into a temporary file in the folder of `path`, which takes that name, replacing what had
/// it, only in finish(), when all of it is on disk. Without finish() nothing is left.
///
/// The same tokens and documents give the same bytes. One thread at a time. Memory: a block of
/// 1 MiB, and 8 bytes a document.
class AegisWriter {
 public:
  /// Throws std::runtime_error, with the path, where the folder cannot be written to.
  AegisWriter(std::string path, TokenType type);
  ~AegisWriter();
  AegisWriter(const AegisWriter&) = delete;
  AegisWriter& operator=(const AegisWriter&) = delete;

  /// Adds `count` tokens of any type. Throws std::invalid_argument, before any of them is added,
  /// where an id is negative or above what the file's type holds: ids never wrap. Throws
  /// std::runtime_error where the disk refuses; what was written is then gone.
  void add(TokenType type, const void* tokens, int64_t count);

  /// Records documents by the positions of their ends, in tokens from the begin of the file. Throws
  /// std::invalid_argument where they descend or lie beyond the tokens that have been added.
  void end_documents(std::span<const int64_t> ends);

  /// `vocab_size` is 0 where it is not known, and so is a `tokenizer` of zeroes. Throws
  /// std::invalid_argument where an id is outside of the vocabulary, or where documents were
  /// recorded but tokens follow the last of them; and as add(). Nothing may be called afterwards.
  void finish(uint64_t vocab_size, const std::array<uint8_t, 32>& tokenizer);

  int64_t tokens() const { return tokens_; }
  int64_t largest_id() const { return largest_; }

 private:
  void put(const std::byte* bytes, size_t count);
  void pad();
  void flush_block();
  void write_all(const void* bytes, size_t count, int64_t offset);
  void check_open() const;
  void require(bool ok, const char* what);
  void remove_temporary();

  const std::string path_;
  const TokenType type_;
  const pid_t owner_;      // a forked child's copy leaves the file alone
  std::string temporary_;  // empty once it has its name
  Descriptor fd_;
  std::vector<std::byte> block_;
  std::vector<uint32_t> checksums_;
  DocumentOffsets offsets_{0};
  int64_t written_ = 0;  // bytes of blocks in the file, behind the header
  int64_t tokens_ = 0;
  int64_t largest_ = 0;
  bool failed_ = false;
};

}  // namespace aegis
