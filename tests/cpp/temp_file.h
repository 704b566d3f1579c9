// A folder of files that lasts as long as the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace aegis {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "aegis-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp: " + pattern);
    folder_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(folder_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(const std::string& name) const { return folder_ / name; }

  template <class T>
  std::string write(const std::string& name, const std::vector<T>& items) const {
    std::ofstream file(path(name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(items.data()),
               static_cast<std::streamsize>(items.size() * sizeof(T)));
    return path(name);
  }

  /// A file of `size` zero bytes that takes no room on disk.
  std::string sparse(const std::string& name, uint64_t size) const {
    std::ofstream(path(name), std::ios::binary).flush();
    std::filesystem::resize_file(path(name), size);
    return path(name);
  }

 private:
  std::filesystem::path folder_;
};

/// The message of the `Exception` that `call` must throw.
template <class Exception, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "no such exception";
  return "";
}

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << part << "' is not in '" << text << "'";
}

}  // namespace aegis
