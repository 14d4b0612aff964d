// One object that a guard watches, with what it held when it was seen.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "guard_values.h"

namespace stowage_guard {

namespace nb = nanobind;

enum class Kind : std::uint8_t {
  kDict,
  kName,
  kList,
  kElements,
  kSize,
  kWords,
  kClass,
  kOwnDict,
  kBases,
  kGetter,
  kMemory,
  kBuffer,
  kReferent,
  kCall,
  kForgotten
};
struct Item {
  nb::object key;
  nb::object value;
  Py_ssize_t offset = 0;  // of a word in its object
};
struct Node {
  Node(Kind k, nb::object o, std::string w, bool q) : kind(k), quiet(q), object(std::move(o)), what(std::move(w)) {}
  Kind kind;
  bool quiet;
  bool attributes = false;
  bool narrowed = false;  // only names_ count
  nb::object object;
  std::vector<Item> items;
  std::vector<PyObject*> pointers;  // of a list
  Py_ssize_t count = 0;
  Py_ssize_t begin = 0;
  std::vector<unsigned char> bytes;
  Digest digest{};
  PyGetSetDef* getset = nullptr;
  std::string what;
};

void take_items(Node& node);  // of a dict
void add_word(Node& node, Py_ssize_t offset, nb::object name);
PyObject** word_at(const Node& node, Py_ssize_t offset);
nb::object current_attribute(const Node& node);  // of a getter; null, with Python's error set, where it raises

// Keeps of a namespace only what counts: ``names``, and special methods, which are read without being named.
void narrow(Node& node, const nb::object& names);

// Compares by content: "" or what has changed. What is equal though another object is remembered anew. ``names``: those
// of narrow(). Runs no Python, but for kCall.
std::string holds(Node& node, const nb::object& names);

}  // namespace stowage_guard
