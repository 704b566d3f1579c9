// Element types of token files and records, without torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <type_traits>

namespace aegis {

/// What a token may be stored as.
enum class TokenType : uint8_t { u8, u16, u32, i32, i64 };

constexpr size_t size_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return 1;
    case TokenType::u16:
      return 2;
    case TokenType::u32:
    case TokenType::i32:
      return 4;
    case TokenType::i64:
      return 8;
  }
  throw std::logic_error("TokenType: not one of the enumerators");
}

/// NumPy's name of the type: "uint16".
constexpr std::string_view name(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return "uint8";
    case TokenType::u16:
      return "uint16";
    case TokenType::u32:
      return "uint32";
    case TokenType::i32:
      return "int32";
    case TokenType::i64:
      return "int64";
  }
  throw std::logic_error("TokenType: not one of the enumerators");
}

/// The type that NumPy calls `text`, if it is one of them.
constexpr std::optional<TokenType> token_type_named(std::string_view text) {
  for (TokenType type :
       {TokenType::u8, TokenType::u16, TokenType::u32, TokenType::i32, TokenType::i64}) {
    if (name(type) == text) return type;
  }
  return std::nullopt;
}

/// Calls `f(std::type_identity<T>{})` with the C++ type that `type` stands for.
template <class F>
decltype(auto) with_token_type(TokenType type, F&& f) {
  switch (type) {
    case TokenType::u8:
      return f(std::type_identity<uint8_t>{});
    case TokenType::u16:
      return f(std::type_identity<uint16_t>{});
    case TokenType::u32:
      return f(std::type_identity<uint32_t>{});
    case TokenType::i32:
      return f(std::type_identity<int32_t>{});
    case TokenType::i64:
      return f(std::type_identity<int64_t>{});
  }
  throw std::logic_error("TokenType: not one of the enumerators");
}

}  // namespace aegis
