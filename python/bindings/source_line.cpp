#include "source_line.h"

#include <Python.h>

#include <algorithm>

std::string source_line(const std::vector<std::string>& hidden) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  std::string found;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && found.empty()) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    const bool shown =
        file != nullptr && file[0] != '<' && std::none_of(hidden.begin(), hidden.end(), [&](const std::string& folder) {
          return std::string_view(file).starts_with(folder);
        });
    if (shown) found = std::string(file) + ":" + std::to_string(PyFrame_GetLineNumber(frame));
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  PyGILState_Release(gil);
  return found;
}

void note_running_codes(const nanobind::object& codes, const nanobind::object& until) {
  const nanobind::gil_scoped_acquire acquire;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    const auto code = nanobind::steal<nanobind::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    if (PySet_Add(codes.ptr(), code.ptr()) != 0) PyErr_Clear();
    PyFrameObject* back = code.is(until) ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
}
