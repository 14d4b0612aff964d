// Whole files as text. Names that end in ".gz" are compressed; "-" is stdin or stdout.
#pragma once

#include <string>
#include <string_view>

namespace stowage::io {

// The uncompressed text. Throws Error naming the file.
std::string read_text(const std::string& path);

// Writes all of it or leaves the old file. Throws Error naming the file.
void write_text(const std::string& path, std::string_view text);

// How messages call the file.
std::string display_name(const std::string& path);

}  // namespace stowage::io
