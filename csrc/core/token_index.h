// Indices that lie beside token files, or before the tokens, and say where documents begin.
//
// Every number in them is checked before it is used; nothing is allocated by what a header claims
// before the size of the file has shown that it can be so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/byte_source.h"
#include "core/dtype.h"

namespace aegis {

/// Where tokens lie and how many documents they are.
struct TokenIndex {
  TokenType type;
  int64_t byte_offset;  ///< of the first token, in the file that holds the tokens
  int64_t tokens;       ///< at least 1
  int64_t documents;
};

/// Document boundaries in tokens: documents + 1 numbers, ascending, the first 0, the last the token
/// count. Two equal ones enclose an empty document.
using DocumentOffsets = std::vector<int64_t>;

/// Reads a Megatron index (`.idx`) for a `.bin` file of `bin_size` bytes, called `bin_path` in
/// messages. Layout, little-endian: "MMIDIDX\0\0", u64 version 1, u8 dtype code, u64 sequences, u64
/// length of the document index (documents + 1), i32 lengths[sequences], i64 byte
/// pointers[sequences], i64 document index[], and in multimodal data i8 modes[sequences].
///
/// Throws std::invalid_argument where the file is no such index, its size is not exactly what its
/// counts take, a sequence does not begin where the one before it ended, the sequences are not all
/// of the `.bin` file, the document index is not ascending from 0 to the number of sequences, or
/// the dtype is none of uint8, uint16, int32 and int64.
///
/// `offsets`, where given, receives the document boundaries. Cost: reads the index once, 12 bytes a
/// sequence and 8 a document, without holding it.
TokenIndex read_megatron_index(const ByteSource& index, int64_t bin_size,
                               const std::string& bin_path, DocumentOffsets* offsets = nullptr);

/// Reads a datatrove index (`.ds.index`: the end of each document in tokens, u64) for a `.ds` file
/// of `size` bytes, called `path` in messages. The size of a token, 2 or 4 bytes, is the size of
/// the file divided by the last end. Throws std::invalid_argument where that is neither, the ends
/// descend, or the index is empty. Cost: reads the index once.
TokenIndex read_datatrove_index(const ByteSource& index, int64_t size, const std::string& path,
                                DocumentOffsets* offsets = nullptr);

/// Reads the header of a litData chunk of token items: u32 count, u32 byte offsets[count + 1], then
/// the items. Throws std::invalid_argument where the offsets do not begin behind the header, do not
/// ascend to the size of the file, or do not lie whole tokens of `type` apart. Items are the
/// documents. Cost: reads the header once.
TokenIndex read_litdata_chunk(const ByteSource& chunk, TokenType type,
                              DocumentOffsets* offsets = nullptr);

}  // namespace aegis
