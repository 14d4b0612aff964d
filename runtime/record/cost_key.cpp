#include "runtime/record/cost_key.h"
#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

template <class Numbers>
void append_list(std::string& out, const Numbers& numbers) {
  bool first = true;
  for (const auto number : numbers) {
    if (!first) out += ',';
    first = false;
    out += std::to_string(number);
  }
}

void append_tensor(std::string& out, const Tape& tape, SlotId id) {
  if (!id.valid()) {
    out += '-';
    return;
  }
  const TensorMeta& meta = tape.slots[id.index()].meta;
  out += meta.dtype.name();
  out += '[';
  append_list(out, meta.sizes);
  out += ';';
  append_list(out, meta.strides);
  out += ';';
  out += std::to_string(meta.storage_offset % 16);  // alignment, not place
  out += ']';
}

void append_value(std::string& out, const c10::IValue& value) {
  if (value.isNone() || value.isTensor()) {
    out += '-';
  } else if (value.isBool()) {
    out += value.toBool() ? 't' : 'f';
  } else if (value.isInt()) {
    out += std::to_string(value.toInt());
  } else if (value.isString()) {
    out += value.toStringRef();
  } else if (value.isIntList()) {
    out += '[';
    append_list(out, value.toIntVector());
    out += ']';
  } else if (value.isBoolList()) {
    out += '[';
    append_list(out, value.toBoolList().vec());
    out += ']';
  } else {
    out += '~';
  }
}

}  // namespace

std::string cost_key(const Tape& tape, const TapeOp& op) {
  std::string out = tape.device.is_cpu() ? "" : tape.device.str() + " ";
  out += full_name(op.handle) + "(";
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    if (i > 0) out += ", ";
    const TensorRef& ref = op.tensors[i];
    if (ref.kind == TensorRef::Kind::kNone) {
      append_value(out, op.arguments[i]);
      continue;
    }
    if (ref.kind != TensorRef::Kind::kTensor) out += '{';
    for (const SlotId slot : ref.slots) append_tensor(out, tape, slot);
    if (ref.kind != TensorRef::Kind::kTensor) out += '}';
  }
  return out + ")";
}

}  // namespace stowage::runtime
