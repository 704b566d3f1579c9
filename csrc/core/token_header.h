// Where the tokens of a file lie, from its first bytes and its size. Pure functions: nothing is
// opened here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/dtype.h"

namespace aegis {

/// What a header says about the file behind it.
struct TokenHeader {
  TokenType type;
  int64_t byte_offset;
  int64_t tokens;
  bool swapped;  ///< written in the other byte order, header and tokens
};

/// Bytes of an llm.c header: 256 int32 numbers, of which magic, version and token count are used.
inline constexpr size_t kLlmcHeaderBytes = 1024;

/// Reads the header of an llm.c or modded-nanogpt shard (GPT-2: uint16 tokens, Llama 3: uint32).
/// `head` is the begin of the file, at least 1024 bytes of it where it is that long; `file_size` is
/// the size of all of it; `path` is used in messages.
///
/// Returns nothing where the file does not begin with an llm.c magic. Throws std::invalid_argument
/// where it does, but the rest contradicts it: another version, a size other than the header and
/// its tokens take, or an evaluation set, which is no stream of tokens.
std::optional<TokenHeader> read_llmc_header(std::span<const std::byte> head, int64_t file_size,
                                            std::string_view path);

/// Tokens in a file that is nothing but tokens. Throws std::invalid_argument for an empty file and
/// for a size that does not divide by the item size.
int64_t raw_token_count(int64_t file_size, TokenType type, std::string_view path);

}  // namespace aegis
