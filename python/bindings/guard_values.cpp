#include "guard_values.h"

#include <cstring>
#include <vector>

namespace stowage_guard {
namespace {

bool same_tuples(PyObject* a, PyObject* b) {
  const Py_ssize_t size = PyTuple_GET_SIZE(a);
  if (size != PyTuple_GET_SIZE(b)) return false;
  if (Py_EnterRecursiveCall(" while values are compared") != 0) {
    PyErr_Clear();
    return false;
  }
  bool same = true;
  for (Py_ssize_t i = 0; same && i < size; ++i) same = same_bits(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
  Py_LeaveRecursiveCall();
  return same;
}

// In one order; equal sets whose orders differ count as different, as they do for code that iterates.
bool same_frozensets(PyObject* a, PyObject* b) {
  if (PySet_GET_SIZE(a) != PySet_GET_SIZE(b)) return false;
  PyObject* i = PyObject_GetIter(a);
  PyObject* j = PyObject_GetIter(b);
  bool same = i != nullptr && j != nullptr;
  while (same) {
    PyObject* x = PyIter_Next(i);
    PyObject* y = PyIter_Next(j);
    const bool end = x == nullptr || y == nullptr;
    same = end ? x == y : same_bits(x, y);
    Py_XDECREF(x);
    Py_XDECREF(y);
    if (end) break;
  }
  Py_XDECREF(i);
  Py_XDECREF(j);
  PyErr_Clear();
  return same;
}

bool same_sizes(PyObject* a, PyObject* b) {  // of slices: three attributes
  const auto* x = reinterpret_cast<PySliceObject*>(a);
  const auto* y = reinterpret_cast<PySliceObject*>(b);
  return same_bits(x->start, y->start) && same_bits(x->stop, y->stop) && same_bits(x->step, y->step);
}

// torch's names of types and places are compared by torch; they are immutable, and their comparison is C.
bool small_value_of_torch(PyTypeObject* type) {
  return std::strcmp(type->tp_name, "torch.device") == 0 || std::strcmp(type->tp_name, "torch.dtype") == 0;
}

// NumPy's scalars: immutable, and their bytes are all there is.
bool numpy_scalar(PyTypeObject* type) {
  const char* name = type->tp_name;
  if (std::strncmp(name, "numpy.", 6) != 0 || std::strcmp(name, "numpy.ndarray") == 0 ||
      std::strcmp(name, "numpy.void") == 0)
    return false;
  return type->tp_as_buffer != nullptr && type->tp_as_buffer->bf_getbuffer != nullptr;
}

std::uint64_t mixed(std::uint64_t h, std::uint64_t word) {
  h = (h ^ word) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

// Two hashes of 64 bits over words, in four lanes so that the processor overlaps them.
Digest digest_of_bytes(const unsigned char* bytes, std::size_t size, Digest seed) {
  std::uint64_t lanes[4] = {seed.low ^ size, seed.high, 0x243F6A8885A308D3ull, 0x13198A2E03707344ull};
  std::size_t at = 0;
  for (; at + 32 <= size; at += 32) {
    std::uint64_t words[4];
    std::memcpy(words, bytes + at, 32);
    for (int i = 0; i < 4; ++i) lanes[i] = mixed(lanes[i], words[i]);
  }
  for (; at < size; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, size - at < 8 ? size - at : 8);
    lanes[0] = mixed(lanes[0], word);
  }
  return {mixed(mixed(lanes[0], lanes[1]), lanes[2] + 1), mixed(mixed(lanes[3], lanes[2]), lanes[1] + 1)};
}

}  // namespace

bool same_bits(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr || Py_TYPE(a) != Py_TYPE(b)) return false;
  PyTypeObject* type = Py_TYPE(a);
  if (type == &PyFloat_Type) {
    const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (type == &PyComplex_Type) {
    const Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (type == &PyUnicode_Type) return PyUnicode_Compare(a, b) == 0 && !PyErr_Occurred();
  if (type == &PyLong_Type || type == &PyBytes_Type || small_value_of_torch(type)) {
    const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    PyErr_Clear();
    return equal == 1;
  }
  if (type == &PyTuple_Type || std::strcmp(type->tp_name, "torch.Size") == 0) return same_tuples(a, b);
  if (type == &PyFrozenSet_Type) return same_frozensets(a, b);
  if (type == &PySlice_Type) return same_sizes(a, b);
  if (type == &PyMethod_Type)
    return PyMethod_GET_FUNCTION(a) == PyMethod_GET_FUNCTION(b) && PyMethod_GET_SELF(a) == PyMethod_GET_SELF(b);
  if (numpy_scalar(type)) return digest_of_buffer(a) == digest_of_buffer(b);
  return false;
}

std::pair<std::uintptr_t, std::uintptr_t> memory_of_buffer(PyObject* object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return {0, 0};
  }
  const auto at = reinterpret_cast<std::uintptr_t>(view.buf);
  Py_ssize_t low = 0, high = view.itemsize;
  if (view.shape == nullptr || view.strides == nullptr) {
    high = view.len;
  } else {
    for (int i = 0; i < view.ndim; ++i) {
      const Py_ssize_t reach = view.shape[i] > 0 ? (view.shape[i] - 1) * view.strides[i] : 0;
      (reach < 0 ? low : high) += reach;
    }
  }
  const bool empty = view.len == 0;
  PyBuffer_Release(&view);
  if (empty) return {0, 0};
  return {at + static_cast<std::uintptr_t>(low), at + static_cast<std::uintptr_t>(high)};
}

Digest digest_of_buffer(PyObject* object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return {};
  }
  Digest digest{1, static_cast<std::uint64_t>(view.itemsize)};
  digest = digest_of_bytes(reinterpret_cast<const unsigned char*>(view.format != nullptr ? view.format : ""),
                           view.format != nullptr ? std::strlen(view.format) : 0, digest);
  if (view.shape != nullptr)
    digest = digest_of_bytes(reinterpret_cast<const unsigned char*>(view.shape),
                             sizeof(Py_ssize_t) * static_cast<std::size_t>(view.ndim), digest);
  if (view.strides != nullptr)
    digest = digest_of_bytes(reinterpret_cast<const unsigned char*>(view.strides),
                             sizeof(Py_ssize_t) * static_cast<std::size_t>(view.ndim), digest);
  if (PyBuffer_IsContiguous(&view, 'A')) {
    digest = digest_of_bytes(static_cast<const unsigned char*>(view.buf), static_cast<std::size_t>(view.len), digest);
  } else {
    std::vector<unsigned char> copy(static_cast<std::size_t>(view.len));
    if (PyBuffer_ToContiguous(copy.data(), &view, view.len, 'C') != 0) PyErr_Clear();
    digest = digest_of_bytes(copy.data(), copy.size(), digest);
  }
  PyBuffer_Release(&view);
  return digest;
}

}  // namespace stowage_guard
