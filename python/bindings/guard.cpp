// A replay does not run the user's Python, so what that Python reads is watched: module flags and hyperparameters, closure cells,
// globals, parameters' identity. Thousands of values are compared before every step, so they are compared here, by address first
// and by value only when the address has changed.
#include "guard.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <vector>

namespace nb = nanobind;

namespace {

class Guard {
 public:
  // The item of a dict must stay the same object, or (by_value) an equal one of the same type.
  void watch_item(nb::dict dict, nb::object key, bool by_value, std::string what) {
    nb::object value = nb::borrow(PyDict_GetItemWithError(dict.ptr(), key.ptr()));
    entries_.push_back({Kind::kItem, by_value, 0, dict, key, value, std::move(what)});
  }
  void watch_element(nb::list list, Py_ssize_t index, bool by_value, std::string what) {
    nb::object value = nb::borrow(PyList_GET_ITEM(list.ptr(), index));
    entries_.push_back({Kind::kElement, by_value, index, list, nb::object(), value, std::move(what)});
  }
  void watch_cell(nb::object cell, bool by_value, std::string what) {
    nb::object value = nb::borrow(PyCell_GET(cell.ptr()));
    entries_.push_back({Kind::kCell, by_value, 0, cell, nb::object(), value, std::move(what)});
  }
  void watch_attribute(nb::object object, nb::object name, std::string what) {
    nb::object value = nb::getattr(object, name);
    entries_.push_back({Kind::kAttribute, true, 0, object, name, value, std::move(what)});
  }
  void watch_size(nb::object container, std::string what) {
    entries_.push_back({Kind::kSize, false, PyObject_Size(container.ptr()), container, nb::object(), nb::object(), std::move(what)});
  }

  // What has changed first, or "" when nothing has.
  std::string changed() const {
    for (const Entry& entry : entries_) {
      if (!holds(entry)) return entry.what;
    }
    return {};
  }

  std::size_t size() const { return entries_.size(); }

  // A guard holds what it watches, which may hold the guard: the garbage collector must see through it.
  int traverse(visitproc visit, void* arg) const {
    for (const Entry& entry : entries_) {
      Py_VISIT(entry.container.ptr());
      Py_VISIT(entry.key.ptr());
      Py_VISIT(entry.value.ptr());
    }
    return 0;
  }
  void clear() { std::vector<Entry>().swap(entries_); }

 private:
  enum class Kind : std::uint8_t { kItem, kElement, kCell, kAttribute, kSize };
  struct Entry {
    Kind kind;
    bool by_value;
    Py_ssize_t index;
    nb::object container;
    nb::object key;
    nb::object value;
    std::string what;
  };

  static nb::object current(const Entry& entry) {
    PyObject* container = entry.container.ptr();
    switch (entry.kind) {
      case Kind::kItem: return nb::borrow(PyDict_GetItemWithError(container, entry.key.ptr()));
      case Kind::kElement:
        return entry.index < PyList_GET_SIZE(container) ? nb::borrow(PyList_GET_ITEM(container, entry.index)) : nb::object();
      case Kind::kCell: return nb::borrow(PyCell_GET(container));
      case Kind::kAttribute: return nb::steal(PyObject_GetAttr(container, entry.key.ptr()));
      case Kind::kSize: break;
    }
    return {};
  }

  static bool holds(const Entry& entry) {
    if (entry.kind == Kind::kSize) return PyObject_Size(entry.container.ptr()) == entry.index;
    const nb::object now = current(entry);
    if (now.ptr() == entry.value.ptr()) return true;
    bool equal = false;
    if (entry.by_value && now.is_valid() && entry.value.is_valid() && Py_TYPE(now.ptr()) == Py_TYPE(entry.value.ptr())) {
      equal = PyObject_RichCompareBool(now.ptr(), entry.value.ptr(), Py_EQ) == 1;
    }
    PyErr_Clear();  // a failing comparison or a missing attribute is a change
    return equal;
  }

  std::vector<Entry> entries_;
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

}  // namespace

void bind_guard(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Guard>(m, "Guard", nb::type_slots(guard_slots))
      .def(nb::init<>())
      .def("watch_item", &Guard::watch_item, "dict"_a, "key"_a, "by_value"_a, "what"_a)
      .def("watch_element", &Guard::watch_element, "list"_a, "index"_a, "by_value"_a, "what"_a)
      .def("watch_cell", &Guard::watch_cell, "cell"_a, "by_value"_a, "what"_a)
      .def("watch_attribute", &Guard::watch_attribute, "object"_a, "name"_a, "what"_a)
      .def("watch_size", &Guard::watch_size, "container"_a, "what"_a)
      .def("changed", &Guard::changed)
      .def("__len__", &Guard::size);
}
