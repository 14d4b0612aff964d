// Which Python functions run while a step is recorded, and which functions of C they call: by the interpreter's profile
// hook, on the thread that records (backward's Python hooks run on it, too). Each function is told once, before its
// body runs, so that what it can read may be remembered as it then is, and with its arguments in each call, where that is
// asked for; each C function is classified once, and told for each object and caller when it matters.
//
// Cost: a hash lookup for each call. The hook that somebody else had set is called as before.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "guard.h"

namespace nb = nanobind;

namespace {

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
// The head of CPython 3.11's private frame; used to find the function that a frame runs, and checked before it is
// believed.
struct FrameData {
  PyObject* function;
};
struct FrameHead {
  PyObject_HEAD PyFrameObject* back;
  FrameData* data;
};
PyObject* function_of(PyFrameObject* frame, PyCodeObject* code) {
  PyObject* function = reinterpret_cast<FrameHead*>(frame)->data->function;
  return function != nullptr && PyFunction_Check(function) &&
                 PyFunction_GET_CODE(function) == reinterpret_cast<PyObject*>(code)
             ? function
             : nullptr;
}
#else
PyObject* function_of(PyFrameObject*, PyCodeObject*) { return nullptr; }
#endif

struct Call {
  const void* function;
  const void* self;
  const void* caller;
  bool operator==(const Call&) const = default;
};
struct CallHash {
  std::size_t operator()(const Call& c) const {
    const auto mix = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) * 0x9E3779B97F4A7C15ull; };
    return static_cast<std::size_t>(mix(c.function) ^ (mix(c.self) >> 7) ^ (mix(c.caller) >> 13));
  }
};

class Notes {
 public:
  // ran(code, function or None, globals) -> bool, whether each call of it is to be told: given(code, arguments by name);
  // matters(c_function) -> bool; called(c_function, code of the caller) -> bool,
  // whether its end is to be told: returned(c_function)
  Notes(nb::object ran, nb::object given, nb::object matters, nb::object called, nb::object returned)
      : ran_(std::move(ran)),
        given_(std::move(given)),
        matters_(std::move(matters)),
        called_(std::move(called)),
        returned_(std::move(returned)) {}

  void start(nb::handle self) {
    PyThreadState* thread = PyThreadState_Get();
    if (running_) throw nb::value_error("these notes are being taken already");
    before_ = thread->c_profilefunc;
    before_object_ = nb::borrow(thread->c_profileobj);
    running_ = true;
    PyEval_SetProfile(&Notes::hook, self.ptr());
  }
  // False when somebody has put another hook in the place of this one: then not everything was seen.
  bool stop() {
    PyThreadState* thread = PyThreadState_Get();
    const bool ours = thread->c_profilefunc == &Notes::hook;
    running_ = false;
    if (ours) PyEval_SetProfile(before_, before_object_.ptr());
    before_ = nullptr;
    before_object_ = nb::object();
    if (error_.is_valid()) {
      nb::object error = std::move(error_);
      error_ = nb::object();
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
      throw nb::python_error();
    }
    return ours;
  }
  void pause() { ++paused_; }
  void resume() { --paused_; }
  std::uint64_t calls() const { return calls_; }

  int traverse(visitproc visit, void* arg) const {
    for (const nb::object* o : {&ran_, &given_, &matters_, &called_, &returned_, &before_object_, &error_})
      Py_VISIT(o->ptr());
    return 0;
  }
  void clear() {
    for (nb::object* o : {&ran_, &given_, &matters_, &called_, &returned_, &before_object_, &error_}) *o = nb::object();
  }

 private:
  static int hook(PyObject* self, PyFrameObject* frame, int event, PyObject* arg) {
    Notes& notes = *nb::inst_ptr<Notes>(self);
    if (notes.before_ != nullptr && notes.before_(notes.before_object_.ptr(), frame, event, arg) != 0) return -1;
    if (notes.paused_ > 0 || notes.error_.is_valid()) return 0;
    if (event == PyTrace_CALL) {
      notes.enter(frame);
    } else if (event == PyTrace_C_CALL && PyCFunction_Check(arg)) {
      notes.enter_c(frame, arg);
    } else if ((event == PyTrace_C_RETURN || event == PyTrace_C_EXCEPTION) && arg == notes.awaited_) {
      notes.awaited_ = nullptr;
      notes.tell(notes.returned_, nb::borrow(arg));
    }
    return 0;
  }

  void enter(PyFrameObject* frame) {
    ++calls_;
    PyCodeObject* code = PyFrame_GetCode(frame);
    const nb::object owned = nb::steal(reinterpret_cast<PyObject*>(code));
    if (!seen_.insert(code).second) {
      if (in_each_call_.contains(code)) tell_arguments(frame, owned);
      return;
    }
    kept_.push_back(owned);  // its address stays its own
    PyObject* function = function_of(frame, code);
    // PyFrame_GetGlobals() is there from Python 3.11 on
    const nb::object globals = nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_globals"));
    const nb::object answer = tell(ran_, owned, function != nullptr ? nb::borrow(function) : nb::none(), globals);
    if (!answer.is(nb::bool_(true))) return;
    in_each_call_.insert(code);
    tell_arguments(frame, owned);
  }

  void tell_arguments(PyFrameObject* frame, const nb::object& code) {
    tell(given_, code, nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_locals")));
  }

  void enter_c(PyFrameObject* frame, PyObject* function) {
    const auto* method = reinterpret_cast<PyCFunctionObject*>(function);
    auto [at, fresh] = matters_of_.try_emplace(method->m_ml, false);
    if (fresh) {
      const nb::object answer = tell(matters_, nb::borrow(function));
      at = matters_of_.find(method->m_ml);
      at->second = answer.is_valid() && PyObject_IsTrue(answer.ptr()) == 1;
    }
    if (!at->second) return;
    PyCodeObject* code = PyFrame_GetCode(frame);
    const nb::object owned = nb::steal(reinterpret_cast<PyObject*>(code));
    if (!called_from_.insert({method->m_ml, method->m_self, code}).second) return;
    kept_.push_back(owned);
    const nb::object answer = tell(called_, nb::borrow(function), owned);
    if (answer.is_valid() && answer.is(nb::bool_(true))) awaited_ = function;
  }

  template <typename... Args>
  nb::object tell(const nb::object& callback, const Args&... args) {
    nb::object result = nb::steal(PyObject_CallFunctionObjArgs(callback.ptr(), args.ptr()..., nullptr));
    if (!result.is_valid()) {  // told when the notes end: the step is not to see it
      PyObject *type, *value, *trace;
      PyErr_Fetch(&type, &value, &trace);
      PyErr_NormalizeException(&type, &value, &trace);
      error_ = nb::borrow(value);
      Py_XDECREF(type);
      Py_XDECREF(value);
      Py_XDECREF(trace);
    }
    return result;
  }

  nb::object ran_, given_, matters_, called_, returned_;
  const PyObject* awaited_ = nullptr;  // runs now, and is compared alone
  Py_tracefunc before_ = nullptr;
  nb::object before_object_, error_;
  bool running_ = false;
  int paused_ = 0;
  std::uint64_t calls_ = 0;
  std::unordered_set<const void*> seen_, in_each_call_;
  std::unordered_map<const void*, bool> matters_of_;
  std::unordered_set<Call, CallHash> called_from_;
  std::vector<nb::object> kept_;
};

int notes_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Notes>(self)->traverse(visit, arg) : 0;
}

int notes_clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Notes>(self)->clear();
  return 0;
}

PyType_Slot notes_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&notes_traverse)},
                             {Py_tp_clear, reinterpret_cast<void*>(&notes_clear)},
                             {0, nullptr}};

}  // namespace

void bind_notes(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Notes>(m, "Notes", nb::type_slots(notes_slots))
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object>(), "ran"_a, "given"_a, "matters"_a,
           "called"_a, "returned"_a)
      .def("start", [](nb::handle self) { nb::cast<Notes&>(self).start(self); })
      .def("stop", &Notes::stop)
      // In C to their ends: no interrupt comes before the hook is gone
      .def("__enter__", [](nb::handle self) { nb::cast<Notes&>(self).start(self); })
      .def("__exit__", [](Notes& self, const nb::args&) { self.stop(); })
      .def("pause", &Notes::pause)
      .def("resume", &Notes::resume)
      .def_prop_ro("calls", &Notes::calls);
}
