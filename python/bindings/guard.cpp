// A replay does not run the user's Python, so what that Python reads is watched: dicts, lists, cells, slots, hooks,
// arrays, generators.
//
// One Node is one object with what it held when it was seen. Before each planned step thousands of nodes are compared,
// in this order:
//   words   single machine words at fixed addresses: the version of a dict (CPython 3.11 counts changes), a slot, a cell, an object's class;
//   lists   the item pointers, as one block of memory;
//   others  getters of tensors, sets, arrays, the memory of random generators.
// A word that differs proves nothing: its node is then compared by content, bit by bit, and the new word is remembered
// when nothing that counts has changed. Addresses stay valid because nodes own their objects. O(nodes) a check; no
// Python runs.
//
// finish() narrows the guard: only nodes that recorded code can reach, and of dicts of attributes only names that such
// code reads.
#include "guard.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <structmember.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "guard_node.h"
#include "guard_values.h"

namespace nb = nanobind;

namespace {

using stowage_guard::Digest;
using stowage_guard::digest_of_buffer;
using stowage_guard::Item;
using stowage_guard::kDictVersions;
using stowage_guard::Kind;
using stowage_guard::Node;
using stowage_guard::same_bits;

class Guard {
 public:
  // Each adds a node and returns its index. ``quiet``: does not count before finish().

  // Contents of a dict: keys in their order, values by identity or bits. ``attributes``: a namespace, of which finish()
  // may keep some names; the order is no matter there.
  std::size_t dict(nb::dict dict, bool attributes, bool quiet, std::string what) {
    Node node(Kind::kDict, dict, std::move(what), quiet);
    node.attributes = attributes;
    take_items(node);
    return add(std::move(node));
  }
  // One name of a namespace, there or not.
  std::size_t name(nb::dict dict, nb::object key, bool quiet, std::string what) {
    Node node(Kind::kName, dict, std::move(what), quiet);
    node.items.push_back({key, nb::borrow(PyDict_GetItemWithError(dict.ptr(), key.ptr()))});
    PyErr_Clear();
    return add(std::move(node));
  }
  std::size_t list(nb::list list, std::string what) {
    Node node(Kind::kList, list, std::move(what), false);
    const Py_ssize_t size = PyList_GET_SIZE(list.ptr());
    for (Py_ssize_t i = 0; i < size; ++i)
      node.items.push_back({nb::object(), nb::borrow(PyList_GET_ITEM(list.ptr(), i))});
    for (const Item& item : node.items) node.pointers.push_back(item.value.ptr());
    return add(std::move(node));
  }
  // Anything whose iteration runs no Python: sets, deques, ordered dicts.
  std::size_t elements(nb::object container, std::string what) {
    Node node(Kind::kElements, container, std::move(what), false);
    const nb::object iterator = nb::steal(PyObject_GetIter(container.ptr()));
    if (!iterator.is_valid()) throw nb::python_error();
    while (PyObject* item = PyIter_Next(iterator.ptr())) node.items.push_back({nb::object(), nb::steal(item)});
    if (PyErr_Occurred()) throw nb::python_error();
    return add(std::move(node));
  }
  std::size_t size(nb::object container, std::string what) {
    Node node(Kind::kSize, container, std::move(what), false);
    node.count = PyObject_Size(container.ptr());
    return add(std::move(node));
  }
  std::size_t cell(nb::object cell, std::string what) {
    if (!PyCell_Check(cell.ptr())) throw nb::type_error("a cell is expected");
    Node node(Kind::kWords, cell, std::move(what), false);
    add_word(node, offsetof(PyCellObject, ob_ref), nb::str("content"));
    return add(std::move(node));
  }
  // Slots of an object: (name, offset) each.
  std::size_t slots(nb::object object, const std::vector<std::pair<nb::object, Py_ssize_t>>& slots, bool quiet,
                    std::string what) {
    Node node(Kind::kWords, object, std::move(what), quiet);
    node.attributes = true;
    for (const auto& [name, offset] : slots) add_word(node, offset, name);
    return add(std::move(node));
  }
  // A function's code and defaults. (What its closure holds are nodes of their own.)
  std::size_t function(nb::object function, std::string what) {
    if (!PyFunction_Check(function.ptr())) throw nb::type_error("a function is expected");
    Node node(Kind::kWords, function, std::move(what), false);
    add_word(node, offsetof(PyFunctionObject, func_code), nb::str("__code__"));
    add_word(node, offsetof(PyFunctionObject, func_defaults), nb::str("__defaults__"));
    add_word(node, offsetof(PyFunctionObject, func_kwdefaults), nb::str("__kwdefaults__"));
    return add(std::move(node));
  }
  // That an object stays of its class and keeps its __dict__.
  std::size_t of_class(nb::object object, std::string what) {
    Node node(Kind::kClass, object, std::move(what), false);
    node.items.push_back({nb::object(), nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())))});
    return add(std::move(node));
  }
  std::size_t own_dict(nb::object object, std::string what) {
    Node node(Kind::kOwnDict, object, std::move(what), false);
    node.items.push_back({nb::object(), nb::steal(PyObject_GenericGetDict(object.ptr(), nullptr))});
    PyErr_Clear();
    return add(std::move(node));
  }
  // The order in which a class looks for attributes.
  std::size_t bases(nb::object cls, std::string what) {
    Node node(Kind::kBases, cls, std::move(what), false);
    node.items.push_back({nb::object(), nb::borrow(reinterpret_cast<PyTypeObject*>(cls.ptr())->tp_mro)});
    return add(std::move(node));
  }
  // An attribute that a C function computes without Python (requires_grad, hooks of tensors).
  std::size_t getter(nb::object object, nb::object name, bool quiet, std::string what) {
    Node node(Kind::kGetter, object, std::move(what), quiet);
    PyObject* descriptor = _PyType_Lookup(Py_TYPE(object.ptr()), name.ptr());
    if (descriptor != nullptr && Py_TYPE(descriptor) == &PyGetSetDescr_Type)
      node.getset = reinterpret_cast<PyGetSetDescrObject*>(descriptor)->d_getset;
    node.items.push_back({name, nb::object()});
    node.items[0].value = current_attribute(node);
    if (!node.items[0].value.is_valid()) PyErr_Clear();
    return add(std::move(node));
  }
  // The fixed part of a C object's memory, from byte ``begin`` to ``end``: what numbers it keeps.
  std::size_t memory(nb::object object, Py_ssize_t begin, Py_ssize_t end, bool quiet, std::string what) {
    Node node(Kind::kMemory, object, std::move(what), quiet);
    node.begin = begin;
    const auto* bytes = reinterpret_cast<const unsigned char*>(object.ptr());
    node.bytes.assign(bytes + begin, bytes + end);
    return add(std::move(node));
  }
  // Arrays, bytearrays, memoryviews: shape, type and every byte.
  std::size_t buffer(nb::object object, std::string what) {
    Node node(Kind::kBuffer, object, std::move(what), false);
    node.digest = digest_of_buffer(object.ptr());
    return add(std::move(node));
  }
  std::size_t referent(nb::object reference, std::string what) {
    if (!PyWeakref_Check(reference.ptr())) throw nb::type_error("a weak reference is expected");
    Node node(Kind::kReferent, reference, std::move(what), false);
    node.digest = {reinterpret_cast<std::uint64_t>(PyWeakref_GET_OBJECT(reference.ptr())), 0};
    return add(std::move(node));
  }
  // What a callable returns, compared by bits. It runs in each check: for what nothing cheaper can see.
  std::size_t call(nb::object callable, bool quiet, std::string what) {
    Node node(Kind::kCall, callable, std::move(what), quiet);
    node.items.push_back({nb::object(), nb::steal(PyObject_CallNoArgs(callable.ptr()))});
    if (!node.items[0].value.is_valid()) throw nb::python_error();
    return add(std::move(node));
  }

  // Keeps the nodes in ``active``. Of namespaces (and slots) only the names in ``names`` count, but for nodes in
  // ``whole``.
  void finish(const std::vector<std::size_t>& active, nb::set names, const std::vector<std::size_t>& whole) {
    std::vector<bool> keep(nodes_.size(), false), entire(nodes_.size(), false);
    for (std::size_t i : active) keep.at(i) = true;
    for (std::size_t i : whole) entire.at(i) = true;
    names_ = names;
    std::vector<Node> kept;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!keep[i]) continue;
      Node& node = nodes_[i];
      node.quiet = false;
      if (node.attributes && !entire[i]) narrow(node, names_);
      if (node.kind == Kind::kWords && node.items.empty()) continue;
      kept.push_back(std::move(node));
    }
    nodes_.swap(kept);
    built_ = false;
  }

  // Nodes that differ now are forgotten. Of those in ``which`` only.
  void forget_changed(const std::vector<std::size_t>& which) {
    for (std::size_t i : which) {
      Node& node = nodes_.at(i);
      if (!holds(node, names_).empty()) node.kind = Kind::kForgotten;
    }
    built_ = false;
  }

  // Holds nothing any more, and has changed for good.
  void let_go(std::string why) {
    clear();
    names_ = nb::set();
    built_ = true;
    lost_ = std::move(why);
  }

  // What has changed first, or "" when nothing has.
  std::string changed() {
    if (!lost_.empty()) return lost_;
    if (!built_) build();
    constexpr std::size_t kAhead = 24;  // words are far apart in memory, and a training step has emptied the caches
    for (std::size_t w = 0; w < words_.size(); ++w) {
      if (w + kAhead < words_.size()) __builtin_prefetch(words_[w + kAhead].at);
      Word& word = words_[w];
      if (*word.at == word.expected) continue;
      for (std::uint32_t i = word.first; i < word.last; ++i) {
        std::string what = holds(nodes_[order_[i]], names_);
        if (!what.empty()) return what;
      }
      word.expected = *word.at;
    }
    for (std::uint32_t i : lists_) {
      Node& node = nodes_[i];
      const auto* list = reinterpret_cast<const PyListObject*>(node.object.ptr());
      const std::size_t size = static_cast<std::size_t>(Py_SIZE(list));
      if (size == node.pointers.size() &&
          (size == 0 || std::memcmp(list->ob_item, node.pointers.data(), size * sizeof(PyObject*)) == 0))
        continue;
      std::string what = holds(node, names_);
      if (!what.empty()) return what;
    }
    for (std::uint32_t i : others_) __builtin_prefetch(nodes_[i].object.ptr());
    for (std::uint32_t i : others_) {
      std::string what = holds(nodes_[i], names_);
      if (!what.empty()) return what;
    }
    return {};
  }

  // Every node that differs, by name: for tests and messages.
  std::vector<std::string> all_changed() {
    std::vector<std::string> found;
    for (Node& node : nodes_) {
      if (node.quiet) continue;
      std::string what = holds(node, names_);
      if (!what.empty()) found.push_back(std::move(what));
    }
    return found;
  }

  std::size_t nodes() const { return nodes_.size(); }

  nb::typed<nb::list, nb::str> blind;  // what no guard can see

  // A guard holds what it watches, which may hold the guard: the garbage collector must see through it.
  int traverse(visitproc visit, void* arg) const {
    for (const Node& node : nodes_) {
      Py_VISIT(node.object.ptr());
      for (const Item& item : node.items) {
        Py_VISIT(item.key.ptr());
        Py_VISIT(item.value.ptr());
      }
    }
    Py_VISIT(names_.ptr());
    return 0;
  }
  void clear() {
    words_.clear();
    lists_.clear();
    others_.clear();
    std::vector<Node>().swap(nodes_);
    names_ = nb::object();
  }

 private:
  struct Word {
    const std::uint64_t* at;
    std::uint64_t expected;
    std::uint32_t first, last;  // in order_: the nodes that it speaks for
  };

  std::size_t add(Node node) {
    nodes_.push_back(std::move(node));
    built_ = false;
    return nodes_.size() - 1;
  }

  // ---- The order of checks

  void build() {
    words_.clear();
    lists_.clear();
    others_.clear();
    order_.clear();
    std::unordered_map<const void*, std::vector<std::uint32_t>> by_dict;
    std::vector<const void*> dicts;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (node.quiet) continue;
      const char* base = reinterpret_cast<const char*>(node.object.ptr());
      switch (node.kind) {
        case Kind::kDict:
        case Kind::kName:
          if (kDictVersions) {
            auto& nodes = by_dict[base];
            if (nodes.empty()) dicts.push_back(base);
            nodes.push_back(i);
          } else {
            others_.push_back(i);
          }
          break;
        case Kind::kWords:
          for (const Item& item : node.items)
            single(base + item.offset, reinterpret_cast<std::uint64_t>(item.value.ptr()), i);
          break;
        case Kind::kOwnDict:
#if STOWAGE_DICT_VERSIONS
          if (PyObject** slot = _PyObject_GetDictPtr(node.object.ptr());
              slot != nullptr && *slot == node.items[0].value.ptr()) {
            single(reinterpret_cast<const char*>(slot), reinterpret_cast<std::uint64_t>(*slot), i);
            break;
          }
#endif
          others_.push_back(i);
          break;
        case Kind::kClass:
          single(base + offsetof(PyObject, ob_type), reinterpret_cast<std::uint64_t>(node.items[0].value.ptr()), i);
          break;
        case Kind::kBases:
          single(base + offsetof(PyTypeObject, tp_mro), reinterpret_cast<std::uint64_t>(node.items[0].value.ptr()), i);
          break;
        case Kind::kMemory:
          if (node.bytes.size() % 8 == 0 && node.begin % 8 == 0 && node.bytes.size() <= 64) {
            for (std::size_t at = 0; at < node.bytes.size(); at += 8) {
              std::uint64_t expected;
              std::memcpy(&expected, node.bytes.data() + at, 8);
              single(base + node.begin + at, expected, i);
            }
          } else {
            others_.push_back(i);
          }
          break;
        case Kind::kList: lists_.push_back(i); break;
        case Kind::kForgotten: break;
        default: others_.push_back(i);
      }
    }
#if STOWAGE_DICT_VERSIONS
    for (const void* dict : dicts) {
      const auto first = static_cast<std::uint32_t>(order_.size());
      const auto& nodes = by_dict[dict];
      order_.insert(order_.end(), nodes.begin(), nodes.end());
      // 0 is no version: the first check compares the contents, since the dict may have changed after its nodes were
      // made.
      words_.push_back({&static_cast<const PyDictObject*>(dict)->ma_version_tag, 0, first,
                        static_cast<std::uint32_t>(order_.size())});
    }
#endif
    // Near in memory, near in time
    std::sort(words_.begin(), words_.end(), [](const Word& a, const Word& b) { return a.at < b.at; });
    built_ = true;
  }
  void single(const char* at, std::uint64_t expected, std::uint32_t node) {
    order_.push_back(node);
    const auto end = static_cast<std::uint32_t>(order_.size());
    words_.push_back({reinterpret_cast<const std::uint64_t*>(at), expected, end - 1, end});
  }

  std::vector<Node> nodes_;
  nb::object names_;
  std::vector<Word> words_;
  std::vector<std::uint32_t> order_, lists_, others_;
  bool built_ = false;
  std::string lost_;  // what had changed when it let go
};

int guard_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Guard>(self)->traverse(visit, arg) : 0;
}

int guard_clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Guard>(self)->clear();
  return 0;
}

PyType_Slot guard_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&guard_traverse)},
                             {Py_tp_clear, reinterpret_cast<void*>(&guard_clear)},
                             {0, nullptr}};

// Offset of a slot that holds a Python object, or -1.
Py_ssize_t slot_offset(nb::handle member) {
  if (Py_TYPE(member.ptr()) != &PyMemberDescr_Type) return -1;
  const PyMemberDef* def = reinterpret_cast<PyMemberDescrObject*>(member.ptr())->d_member;
  return def->type == T_OBJECT_EX || def->type == T_OBJECT ? def->offset : -1;
}

// Made by a class statement: all that its instances add to those of its base are slots, a dict and weak references.
bool python_class(nb::handle cls) {
  static const destructor made_by_python = [] {
    const nb::object sample =
        nb::steal(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "Sample"));
    return reinterpret_cast<PyTypeObject*>(sample.ptr())->tp_dealloc;
  }();
  return PyType_Check(cls.ptr()) && reinterpret_cast<PyTypeObject*>(cls.ptr())->tp_dealloc == made_by_python;
}

// The namespace of a class itself, where a mappingproxy would be seen otherwise.
nb::dict class_dict(nb::handle cls) {
#if PY_VERSION_HEX >= 0x030C0000
  return nb::steal<nb::dict>(PyType_GetDict(reinterpret_cast<PyTypeObject*>(cls.ptr())));
#else
  return nb::borrow<nb::dict>(reinterpret_cast<PyTypeObject*>(cls.ptr())->tp_dict);
#endif
}

}  // namespace

void bind_guard(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Guard>(m, "Guard", nb::type_slots(guard_slots))
      .def(nb::init<>())
      .def_rw("blind", &Guard::blind)
      .def("changed", &Guard::changed)
      .def("all_changed", &Guard::all_changed)
      .def("name", &Guard::name, "dict"_a, "key"_a.none(), "quiet"_a, "what"_a)
      .def("dict", &Guard::dict, "dict"_a, "attributes"_a, "quiet"_a, "what"_a)
      .def("list", &Guard::list, "list"_a, "what"_a)
      .def("elements", &Guard::elements, "container"_a.none(), "what"_a)
      .def("size", &Guard::size, "container"_a.none(), "what"_a)
      .def("cell", &Guard::cell, "cell"_a.none(), "what"_a)
      .def("slots", &Guard::slots, "object"_a.none(), "slots"_a, "quiet"_a, "what"_a)
      .def("function", &Guard::function, "function"_a.none(), "what"_a)
      .def("of_class", &Guard::of_class, "object"_a.none(), "what"_a)
      .def("own_dict", &Guard::own_dict, "object"_a.none(), "what"_a)
      .def("bases", &Guard::bases, "cls"_a.none(), "what"_a)
      .def("getter", &Guard::getter, "object"_a.none(), "name"_a.none(), "quiet"_a, "what"_a)
      .def("memory", &Guard::memory, "object"_a.none(), "begin"_a, "end"_a, "quiet"_a, "what"_a)
      .def("buffer", &Guard::buffer, "object"_a.none(), "what"_a)
      .def("referent", &Guard::referent, "reference"_a.none(), "what"_a)
      .def("call", &Guard::call, "callable"_a.none(), "quiet"_a, "what"_a)
      .def("finish", &Guard::finish, "active"_a, "names"_a, "whole"_a)
      .def("let_go", &Guard::let_go, "why"_a)
      .def("forget_changed", &Guard::forget_changed, "which"_a)
      .def("__len__", &Guard::nodes);
  m.def(
      "same_bits", [](nb::handle a, nb::handle b) { return same_bits(a.ptr(), b.ptr()); }, "a"_a.none(), "b"_a.none());
  m.def(
      "buffer_memory", [](nb::handle object) { return stowage_guard::memory_of_buffer(object.ptr()); }, "object"_a,
      "[first byte, end) of what an object with the buffer protocol looks into; (0, 0) for none.");
  m.def(
      "buffer_digest",
      [](nb::handle object) {
        const Digest digest = digest_of_buffer(object.ptr());
        return std::pair(digest.low, digest.high);
      },
      "object"_a, "Of shape, type and every byte.");
  m.def(
      "without_collections",
      [](const nb::callable& call) {
        // In C++, so that no interrupt comes between the two
        struct Pause {
          int was = PyGC_Disable();
          ~Pause() {
            if (was != 0) PyGC_Enable();
          }
        } const pause;
        return call();
      },
      "call"_a,
      "call(), without collections of garbage meanwhile: where it makes many objects, they would look through all that "
      "there is, again and again.");
  m.def("slot_offset", &slot_offset, "member"_a.none());
  m.def("python_class", &python_class, "cls"_a.none());
  m.def("class_dict", &class_dict, "cls"_a.none());
  bind_notes(m);
}
