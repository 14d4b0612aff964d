#include "guard_node.h"

#include <cstring>

namespace stowage_guard {
namespace {

// Special methods (__add__, __len__, ...) are read without being named.
bool special(PyObject* key) {
  if (!PyUnicode_Check(key) || PyUnicode_GET_LENGTH(key) < 5) return false;
  const Py_ssize_t end = PyUnicode_GET_LENGTH(key) - 1;
  return PyUnicode_READ_CHAR(key, 0) == '_' && PyUnicode_READ_CHAR(key, 1) == '_' &&
         PyUnicode_READ_CHAR(key, end) == '_' && PyUnicode_READ_CHAR(key, end - 1) == '_';
}
bool counts(PyObject* key, const nb::object& names) {
  if (special(key)) return true;
  const int found = PySet_Contains(names.ptr(), key);
  if (found < 0) PyErr_Clear();
  return found == 1;
}

std::string text(const nb::object& key) {
  if (!PyUnicode_Check(key.ptr())) return "?";
  const char* utf8 = PyUnicode_AsUTF8(key.ptr());
  if (utf8 == nullptr) PyErr_Clear();
  return utf8 != nullptr ? utf8 : "?";
}
std::string subscript(const nb::object& key) {
  if (PyUnicode_Check(key.ptr())) return "." + text(key);
  const nb::object repr = PyLong_Check(key.ptr()) ? nb::steal(PyObject_Repr(key.ptr())) : nb::object();
  return "[" + (repr.is_valid() ? text(repr) : std::string("...")) + "]";
}
std::string quoted(const std::string& what) { return "'" + what + "'"; }

bool item_holds(Item& item, PyObject* now) {
  if (now == item.value.ptr()) return true;
  if (!same_bits(now, item.value.ptr())) return false;
  item.value = nb::borrow(now);
  return true;
}

std::string dict_holds(Node& node, const nb::object& names) {
  if (!node.attributes) {
    if (static_cast<std::size_t>(PyDict_GET_SIZE(node.object.ptr())) != node.items.size())
      return "size of " + quoted(node.what);
    PyObject *key, *value;
    std::size_t i = 0;
    for (Py_ssize_t at = 0; PyDict_Next(node.object.ptr(), &at, &key, &value); ++i) {
      Item& item = node.items[i];
      if (key != item.key.ptr() && !same_bits(key, item.key.ptr())) return "keys of " + quoted(node.what);
      if (!item_holds(item, value)) return quoted(node.what + subscript(item.key));
    }
    return {};
  }
  for (Item& item : node.items) {
    PyObject* now = PyDict_GetItemWithError(node.object.ptr(), item.key.ptr());
    if (now == nullptr) PyErr_Clear();
    if (!item_holds(item, now)) return quoted(node.what + "." + text(item.key));
  }
  const auto size = static_cast<std::size_t>(PyDict_GET_SIZE(node.object.ptr()));
  if (!node.narrowed) return size == node.items.size() ? "" : "attributes of " + quoted(node.what);
  if (size == node.items.size()) return {};
  PyObject *key, *value;
  std::size_t counted = 0;
  for (Py_ssize_t at = 0; PyDict_Next(node.object.ptr(), &at, &key, &value);) {
    if (!counts(key, names)) continue;
    if (++counted > node.items.size()) return "attributes of " + quoted(node.what);
  }
  return {};
}

std::string list_holds(Node& node) {
  if (static_cast<std::size_t>(PyList_GET_SIZE(node.object.ptr())) != node.items.size())
    return "size of " + quoted(node.what);
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    PyObject* now = PyList_GET_ITEM(node.object.ptr(), static_cast<Py_ssize_t>(i));
    if (!item_holds(node.items[i], now)) return quoted(node.what + "[" + std::to_string(i) + "]");
    node.pointers[i] = now;
  }
  return {};
}

std::string elements_hold(Node& node) {
  const nb::object iterator = nb::steal(PyObject_GetIter(node.object.ptr()));
  std::size_t i = 0;
  bool equal = iterator.is_valid();
  while (equal) {
    const nb::object item = nb::steal(PyIter_Next(iterator.ptr()));
    if (!item.is_valid()) break;
    equal = i < node.items.size() && item_holds(node.items[i], item.ptr());
    ++i;
  }
  if (PyErr_Occurred()) equal = false;
  PyErr_Clear();
  return equal && i == node.items.size() ? "" : "contents of " + quoted(node.what);
}

}  // namespace

void take_items(Node& node) {
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(node.object.ptr(), &at, &key, &value);)
    node.items.push_back({nb::borrow(key), nb::borrow(value)});
}

void add_word(Node& node, Py_ssize_t offset, nb::object name) {
  node.items.push_back({std::move(name), nb::borrow(*word_at(node, offset)), offset});
}

PyObject** word_at(const Node& node, Py_ssize_t offset) {
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(node.object.ptr()) + offset);
}

void narrow(Node& node, const nb::object& names) {
  std::erase_if(node.items, [&](const Item& item) { return !counts(item.key.ptr(), names); });
  node.narrowed = true;
}

nb::object current_attribute(const Node& node) {
  if (node.getset != nullptr) return nb::steal(node.getset->get(node.object.ptr(), node.getset->closure));
  return nb::steal(PyObject_GetAttr(node.object.ptr(), node.items[0].key.ptr()));
}

std::string holds(Node& node, const nb::object& names) {
  switch (node.kind) {
    case Kind::kDict: return dict_holds(node, names);
    case Kind::kName:
      return item_holds(node.items[0], PyDict_GetItemWithError(node.object.ptr(), node.items[0].key.ptr())) ? ""
                                                                                                            : node.what;
    case Kind::kList: return list_holds(node);
    case Kind::kElements: return elements_hold(node);
    case Kind::kSize: return PyObject_Size(node.object.ptr()) == node.count ? "" : "size of " + quoted(node.what);
    case Kind::kWords:
      for (Item& item : node.items) {
        if (!item_holds(item, *word_at(node, item.offset)))
          return node.attributes ? quoted(node.what + "." + text(item.key)) : node.what;
      }
      return {};
    case Kind::kClass:
      return reinterpret_cast<PyObject*>(Py_TYPE(node.object.ptr())) == node.items[0].value.ptr()
                 ? ""
                 : "class of " + quoted(node.what);
    case Kind::kOwnDict: {
      const nb::object now = nb::steal(PyObject_GenericGetDict(node.object.ptr(), nullptr));
      PyErr_Clear();
      return now.ptr() == node.items[0].value.ptr() ? "" : quoted(node.what + ".__dict__");
    }
    case Kind::kBases:
      return same_bits(reinterpret_cast<PyTypeObject*>(node.object.ptr())->tp_mro, node.items[0].value.ptr())
                 ? ""
                 : "bases of " + quoted(node.what);
    case Kind::kGetter: {
      const nb::object now = current_attribute(node);
      PyErr_Clear();
      return item_holds(node.items[0], now.ptr()) ? "" : quoted(node.what + "." + text(node.items[0].key));
    }
    case Kind::kMemory:
      return std::memcmp(reinterpret_cast<const char*>(node.object.ptr()) + node.begin, node.bytes.data(),
                         node.bytes.size()) == 0
                 ? ""
                 : node.what;
    case Kind::kBuffer: return digest_of_buffer(node.object.ptr()) == node.digest ? "" : quoted(node.what);
    case Kind::kReferent:
      return reinterpret_cast<std::uint64_t>(PyWeakref_GET_OBJECT(node.object.ptr())) == node.digest.low
                 ? ""
                 : quoted(node.what);
    case Kind::kCall: {
      const nb::object now = nb::steal(PyObject_CallNoArgs(node.object.ptr()));
      PyErr_Clear();
      return item_holds(node.items[0], now.ptr()) ? "" : node.what;
    }
    case Kind::kForgotten: return {};
  }
  return {};
}

}  // namespace stowage_guard
