#include "runtime/replay/arguments.h"

#include <algorithm>
#include <cstring>

#include "runtime/torch/op_facts.h"
#include "runtime/torch/sparse.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

bool is_number_of_the_same_kind(const TapeOp& op, std::size_t i, const c10::IValue& value) {
  const c10::IValue& recorded = op.arguments[i];
  if (static_cast<int>(i) == op.fixed_number) return false;
  if (is_number_tensor(recorded))
    return is_number_tensor(value) && value.toTensor().scalar_type() == recorded.toTensor().scalar_type();
  if (is_sparse(recorded)) return is_sparse(value) && of_one_form(recorded.toTensor(), value.toTensor());
  return same_kind_of_number(recorded, value) && takes_number(op.handle, i);
}

bool same_number(const c10::IValue& a, const c10::IValue& b) {
  if (a.isList()) {
    const c10::ArrayRef<c10::IValue> x = a.toListRef();
    const c10::ArrayRef<c10::IValue> y = b.toListRef();
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_number);
  }
  if (is_number_tensor(a)) {
    const at::Tensor& x = a.toTensor();
    return std::memcmp(x.const_data_ptr(), b.toTensor().const_data_ptr(), x.element_size()) == 0;
  }
  if (a.isComplexDouble()) {
    const c10::complex<double> x = a.toComplexDouble();
    const c10::complex<double> y = b.toComplexDouble();
    return std::memcmp(&x, &y, sizeof(x)) == 0;
  }
  if (!a.isDouble()) return a == b;
  const double x = a.toDouble();
  const double y = b.toDouble();
  return std::memcmp(&x, &y, sizeof(x)) == 0;
}

bool same_value(const c10::IValue& a, const c10::IValue& b) { return a.tagKind() == b.tagKind() && same_number(a, b); }

bool tells_recorded_numbers(const TapeOp& op, const std::vector<c10::IValue>& told) {
  return std::equal(told.begin(), told.end(), op.values.begin(), op.values.end(),
                    [](const c10::IValue& now, const c10::IValue& recorded) {
                      return recorded.isScalar() && same_value(now, recorded);
                    });
}

}  // namespace stowage::runtime
