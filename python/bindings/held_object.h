// A Python object that C++ holds.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

// Let go of under the GIL, whoever lets go last.
struct HeldObject {
  explicit HeldObject(nanobind::object held) : object(std::move(held)) {}
  ~HeldObject() {
    const nanobind::gil_scoped_acquire acquire;
    object.reset();
  }
  HeldObject(const HeldObject&) = delete;
  HeldObject& operator=(const HeldObject&) = delete;
  nanobind::object object;
};
