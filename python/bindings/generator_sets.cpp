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

// Told before and after: whoever looks in between, on another thread, sees that something is under way.
template <std::size_t I>
PyObject* noted(PyObject* self, PyObject* argument) {
  const auto note = [&] {
    stowage::runtime::note_set_by_python(reinterpret_cast<THPGenerator*>(self)->cdata.unsafeGetGeneratorImpl());
  };
  note();
  PyObject* result = g_setters[I](self, argument);
  note();
  return result;
}

PyCFunction g_get_state = nullptr;

PyObject* told(PyObject* self, PyObject* argument) {
  PyObject* result = g_get_state(self, argument);
  if (result != nullptr && Py_TYPE(result)->tp_basicsize >= static_cast<Py_ssize_t>(sizeof(THPVariable)))
    stowage::runtime::tell_generator_state(reinterpret_cast<THPGenerator*>(self)->cdata, THPVariable_Unpack(result));
  return result;
}

void watch_states(nb::handle type) {
  PyObject* method = PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(type.ptr())->tp_dict, "get_state");
  if (method == nullptr || !PyObject_TypeCheck(method, &PyMethodDescr_Type)) return;
  PyMethodDef* definition = reinterpret_cast<PyMethodDescrObject*>(method)->d_method;
  if (definition->ml_flags != METH_NOARGS || definition->ml_meth == &told) return;
  g_get_state = std::exchange(definition->ml_meth, &told);
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
  watch_all(type, std::make_index_sequence<kSetters.size()>());
  watch_states(type);
}
