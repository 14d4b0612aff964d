// Another thread's draws move the generator, and so does Python that sets it, if only to a state that draws would have
// led to. No state tells which; the methods of torch.Generator do, each with a note around what it does.
#include "generator_sets.h"

#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <utility>

#include "runtime/torch/generator.h"

namespace nb = nanobind;

namespace {

constexpr std::array kSetters = {"set_state", "graphsafe_set_state", "set_offset", "manual_seed", "seed"};
std::array<PyCFunction, kSetters.size()> g_setters{};

const at::Generator& generator_in(PyObject* object) { return reinterpret_cast<THPGenerator*>(object)->cdata; }

PyTypeObject* g_tensor_type = nullptr;

bool is_tensor(PyObject* object) { return object != nullptr && PyObject_TypeCheck(object, g_tensor_type) != 0; }

// Told before and after: whoever looks in between, on another thread, sees that something is under way.
template <std::size_t I>
PyObject* noted(PyObject* self, PyObject* argument) {
  namespace rt = stowage::runtime;
  const auto note = [&] { rt::note_set_by_python(generator_in(self).unsafeGetGeneratorImpl()); };
  const auto reads = [&](bool begins) {
    if (is_tensor(argument)) rt::tell_generator_state_read(THPVariable_Unpack(argument), begins);
  };
  note();
  reads(true);
  PyObject* result = g_setters[I](self, argument);
  reads(false);
  note();
  if (result != nullptr) rt::tell_generator_set(generator_in(self));
  return result;
}

// ---- A state is taken out

PyCFunction g_get_state = nullptr;
PyCFunction g_clone_state = nullptr;
PyCFunction g_reduce = nullptr;

PyObject* told(PyObject* self, PyObject* argument) {
  PyObject* result = g_get_state(self, argument);
  if (is_tensor(result)) stowage::runtime::tell_generator_state(generator_in(self), THPVariable_Unpack(result));
  return result;
}

PyObject* cloned(PyObject* self, PyObject* argument) {
  PyObject* result = g_clone_state(self, argument);
  if (result != nullptr && Py_TYPE(result) == Py_TYPE(self)) stowage::runtime::tell_generator_set(generator_in(result));
  return result;
}

PyObject* pickled(PyObject* self, PyObject* argument) {
  try {
    const nb::gil_scoped_release release;
    stowage::runtime::tell_generator_pickled(generator_in(self));
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  return g_reduce(self, argument);
}

void watch_states(nb::handle type, const char* name, PyCFunction instead, PyCFunction& before) {
  PyObject* method = PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(type.ptr())->tp_dict, name);
  if (method == nullptr || !PyObject_TypeCheck(method, &PyMethodDescr_Type)) return;
  PyMethodDef* definition = reinterpret_cast<PyMethodDescrObject*>(method)->d_method;
  if (definition->ml_flags != METH_NOARGS || definition->ml_meth == instead) return;
  before = std::exchange(definition->ml_meth, instead);
}

template <std::size_t I>
void watch(nb::handle type) {
  PyObject* method = PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(type.ptr())->tp_dict, kSetters[I]);
  if (method == nullptr || !PyObject_TypeCheck(method, &PyMethodDescr_Type)) return;
  PyMethodDef* definition = reinterpret_cast<PyMethodDescrObject*>(method)->d_method;
  if (definition->ml_flags != METH_O && definition->ml_flags != METH_NOARGS) return;
  if (definition->ml_meth == &noted<I>) return;
  g_setters[I] = std::exchange(definition->ml_meth, &noted<I>);
}

template <std::size_t... I>
void watch_all(nb::handle type, std::index_sequence<I...>) {
  (watch<I>(type), ...);
}

}  // namespace

at::Generator generator_of(nb::handle object) {
  if (!nb::isinstance(object, nb::module_::import_("torch").attr("_C").attr("Generator")))
    throw nb::type_error("a torch.Generator is needed");
  return reinterpret_cast<THPGenerator*>(object.ptr())->cdata;
}

void watch_generator_sets() {
  const nb::object type = nb::module_::import_("torch").attr("_C").attr("Generator");
  g_tensor_type = reinterpret_cast<PyTypeObject*>(nb::module_::import_("torch").attr("_C").attr("TensorBase").ptr());
  watch_all(type, std::make_index_sequence<kSetters.size()>());
  watch_states(type, "get_state", &told, g_get_state);
  watch_states(type, "clone_state", &cloned, g_clone_state);
  watch_states(type, "__reduce__", &pickled, g_reduce);
}
