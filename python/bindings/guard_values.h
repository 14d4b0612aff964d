#pragma once

// When are two Python values the same for code that reads them? The same object, or equal to the last bit and of the
// same types: 0.0 is not -0.0, 1 is not True, (2,) is not (2.0,), and a NaN is itself. Containers that can change are
// the same only as objects.
#include <Python.h>

#include <cstdint>
#include <utility>

// Python 3.11 counts the changes of a dict where anybody can read it; later versions do not.
#define STOWAGE_DICT_VERSIONS (PY_VERSION_HEX < 0x030C0000)

namespace stowage_guard {

constexpr bool kDictVersions = STOWAGE_DICT_VERSIONS;

// Either may be null. Runs no Python of the user's.
bool same_bits(PyObject* a, PyObject* b);

struct Digest {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Digest&) const = default;
};

// Of an object with the buffer protocol: shape, strides, format and bytes. {} when it has none.
Digest digest_of_buffer(PyObject* object);

// [first byte, end) of what such an object looks into; {0, 0} when it has none.
std::pair<std::uintptr_t, std::uintptr_t> memory_of_buffer(PyObject* object);

}  // namespace stowage_guard
