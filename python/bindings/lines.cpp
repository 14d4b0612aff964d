#include "lines.h"

#include <Python.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/memory/allocator.h"
#include "runtime/memory/device.h"

namespace nb = nanobind;
namespace owners = stowage::runtime::owners;
using namespace nb::literals;

namespace {

constexpr std::size_t kMostCodes = 1 << 15;
constexpr std::size_t kMostPlaces = 1 << 18;

struct Place {
  const PyCodeObject* code;
  int instruction;
  bool operator==(const Place&) const = default;
};

struct PlaceHash {
  std::size_t operator()(const Place& place) const {
    return (reinterpret_cast<std::uintptr_t>(place.code) >> 4) * 31 + static_cast<std::size_t>(place.instruction);
  }
};

struct Line {
  std::string file;
  int line = 0;
  std::string function;
};

// Under the GIL, but for `lines`, which is read by who has none.
struct Known {
  std::vector<std::string> hidden, shown;
  std::unordered_map<const PyCodeObject*, bool> codes;  // is it hidden?
  std::unordered_map<Place, std::int32_t, PlaceHash> places;
  std::map<std::pair<std::string, int>, std::int32_t> numbers;
  std::mutex mutex;
  std::vector<Line> lines{1};
};

Known& known() {
  static auto* const known = new Known();
  return *known;
}

// The length of the longest of the folders that the file lies below.
std::size_t nearest(const std::vector<std::string>& folders, std::string_view file) {
  std::size_t length = 0;
  for (const std::string& folder : folders) {
    if (file.starts_with(folder)) length = std::max(length, folder.size());
  }
  return length;
}

bool look_whether_hidden(PyCodeObject* code) {
  const char* const file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) PyErr_Clear();
  if (file == nullptr || file[0] == '<') return true;
  return nearest(known().hidden, file) > nearest(known().shown, file);
}

bool is_hidden(PyCodeObject* code) {
  const auto met = known().codes.find(code);
  if (met != known().codes.end()) return met->second;
  const bool hidden = look_whether_hidden(code);
  if (known().codes.size() < kMostCodes) {
    Py_INCREF(reinterpret_cast<PyObject*>(code));
    known().codes.emplace(code, hidden);
  }
  return hidden;
}

int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return PyFrame_GetLineNumber(frame);
#endif
}

std::int32_t number_of(PyFrameObject* frame, PyCodeObject* code) {
  const Place place{code, instruction_of(frame)};
  const auto met = known().places.find(place);
  if (met != known().places.end()) return met->second;
  const int line = PyFrame_GetLineNumber(frame);
  const std::pair<std::string, int> key(PyUnicode_AsUTF8(code->co_filename), line);
  const auto [number, is_new] = known().numbers.try_emplace(key, 0);
  if (is_new) {
    const char* const function = PyUnicode_AsUTF8(code->co_name);
    const std::lock_guard lock(known().mutex);
    number->second = static_cast<std::int32_t>(known().lines.size());
    known().lines.push_back({key.first, line, function == nullptr ? "" : function});
  }
  if (known().codes.contains(code) && known().places.size() < kMostPlaces)
    known().places.emplace(place, number->second);
  return number->second;
}

std::int32_t line_now() {
  // A thread that Python does not know runs none of its lines
  if (PyGILState_GetThisThreadState() == nullptr) return 0;
  const PyGILState_STATE gil = PyGILState_Ensure();
  std::int32_t number = 0;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && number == 0) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    if (!is_hidden(code)) number = number_of(frame, code);
    Py_DECREF(reinterpret_cast<PyObject*>(code));
    PyFrameObject* const back = number == 0 ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = back;
  }
  PyGILState_Release(gil);
  return number;
}

Line line_at(std::int32_t number) {
  const std::lock_guard lock(known().mutex);
  return known().lines.at(static_cast<std::size_t>(number));
}

std::string text_of(std::int32_t number) {
  const Line line = line_at(number);
  return line.file.substr(line.file.rfind('/') + 1) + ":" + std::to_string(line.line);
}

const char* name_of(owners::Phase phase) {
  constexpr const char* kNames[] = {"set-up", "forward", "backward", "update"};
  return kNames[static_cast<std::size_t>(phase)];
}

nb::dict line_dict(std::int32_t number) {
  const Line line = line_at(number);
  nb::dict d;
  d["file"] = line.file;
  d["line"] = line.line;
  d["function"] = line.function;
  return d;
}

nb::dict peak_dict() {
  const owners::Peak peak = owners::peak();
  nb::dict d = line_dict(peak.line);
  d["bytes"] = peak.bytes;
  d["phase"] = name_of(peak.phase);
  d["update"] = peak.update;
  nb::dict phases;
  for (std::size_t i = 0; i < peak.of_phase.size(); ++i)
    phases[name_of(static_cast<owners::Phase>(i))] = peak.of_phase[i];
  d["of_phase"] = phases;
  nb::list held;
  for (const owners::Held& h : peak.held) {
    nb::dict row = line_dict(h.line);
    row["phase"] = name_of(h.phase);
    row["bytes"] = h.bytes;
    row["between_bytes"] = h.between_bytes;
    row["grown"] = h.grown;
    held.append(row);
  }
  d["held"] = held;
  return d;
}

nb::list curve_list() {
  nb::list samples;
  for (const owners::Sample& sample : owners::curve()) samples.append(nb::make_tuple(sample.at_ns, sample.live_bytes));
  return samples;
}

}  // namespace

owners::Lines lines() { return {&line_now, &text_of}; }

void bind_owners(nb::module_& m) {
  m.def(
      "hide_lines",
      [](std::vector<std::string> hidden, std::vector<std::string> shown) {
        known().hidden = std::move(hidden);
        known().shown = std::move(shown);
      },
      "hidden"_a, "shown"_a,
      "Code below the first folders is no user's, but for what is below the second; the nearest folder counts.");
  m.def(
      "begin_owners",
      [](const std::string& device) {
        const c10::Device where(device);
        if (!where.is_cpu()) stowage::runtime::device_at(where).install();
        owners::begin(lines(), where);
      },
      "device"_a = "cpu", "From now on blocks of the device are counted by the line that asks for them.");
  m.def("end_owners", &owners::end);
  m.def("forget_owners", &owners::forget);
  m.def("owners_peak", &peak_dict, "What was live when the most was, by line and phase, the largest first.");
  m.def("owners_curve", &curve_list, "(t_ns, live bytes), at most 16,384 of them.");
  m.def("owners_updates", &owners::updates, "Optimizer steps so far.");
  m.def("update_begins", &owners::update_begins, "optimizer"_a);
  m.def("update_ends", &owners::update_ends, "optimizer"_a);
}
