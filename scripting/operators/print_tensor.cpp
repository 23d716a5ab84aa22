// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/operators/print_tensor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <sstream>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/scripting_context.h"

namespace moonhalo::scripting {

namespace {

using PrintOptions = ScriptingContext::PrintOptions;
PrintOptions& print_options() { return scripting_context->print_options; }

/// The format of the numbers of one tensor, decided from all that are shown.
struct NumberFormat {
  bool integral = false;  // dtype without fraction
  bool whole = false;     // floating, but every value is an integer
  bool scientific = false;

  std::string operator()(double value) const {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    const int digits = static_cast<int>(print_options().precision);
    char text[400];  // the largest double has 309 digits
    if (scientific) {
      std::snprintf(text, sizeof text, "%.*e", digits, value);
    } else if (whole) {
      std::snprintf(text, sizeof text, "%.0f.", value);
    } else {
      std::snprintf(text, sizeof text, "%.*f", digits, value);
    }
    return text;
  }
};

NumberFormat float_format(const at::Tensor& shown) {
  const at::Tensor flat = shown.to(at::kDouble).reshape(-1);
  const at::Tensor finite = flat.index({flat.isfinite().logical_and(flat.ne(0))});
  NumberFormat format;
  format.whole = true;
  if (finite.numel() == 0) return format;
  const double largest = finite.abs().max().item<double>();
  const double smallest = finite.abs().min().item<double>();
  format.whole = finite.eq(finite.ceil()).all().item<bool>();
  format.scientific = print_options().sci_mode.value_or(largest / smallest > 1000 || largest > 1e8 ||
                                                        (!format.whole && smallest < 1e-4));
  return format;
}

/// The elements of a plain CPU tensor as strings of one width.
class Elements {
 public:
  explicit Elements(const at::Tensor& tensor) : tensor_(tensor) {
    const at::Tensor shown = corner(tensor);
    if (tensor.is_complex()) {
      format_ = float_format(at::view_as_real(shown));
    } else if (tensor.is_floating_point()) {
      format_ = float_format(shown);
    }
    const at::Tensor flat = shown.reshape(-1);
    for (int64_t i = 0; i < flat.numel(); ++i) width_ = std::max(width_, raw(flat[i]).size());
  }

  void write(std::ostream& out, size_t indent) const { write(out, tensor_, indent); }

 private:
  /// The part of a large tensor that will be shown.
  static at::Tensor corner(at::Tensor tensor) {
    const int64_t edge = print_options().edgeitems;
    if (tensor.numel() <= print_options().threshold) return tensor;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      const int64_t size = tensor.size(dim);
      if (size <= 2 * edge) continue;
      tensor = at::cat({tensor.narrow(dim, 0, edge), tensor.narrow(dim, size - edge, edge)}, dim);
    }
    return tensor;
  }

  std::string raw(const at::Tensor& element) const {
    const at::Scalar value = element.item();
    if (value.isBoolean()) return value.toBool() ? "True" : "False";
    if (element.scalar_type() == at::kUInt64) return std::to_string(value.toUInt64());
    if (value.isIntegral(false)) return std::to_string(value.toLong());
    if (!value.isComplex()) return format_(value.toDouble());
    const c10::complex<double> z = value.toComplexDouble();
    return format_(z.real()) + (std::signbit(z.imag()) ? "-" : "+") + format_(std::abs(z.imag())) + "j";
  }

  std::string padded(const at::Tensor& element) const {
    const std::string text = raw(element);
    return std::string(width_ - std::min(width_, text.size()), ' ') + text;
  }

  bool summarized(int64_t size) const {
    return tensor_.numel() > print_options().threshold && size > 2 * print_options().edgeitems;
  }

  void write_row(std::ostream& out, const at::Tensor& row, size_t indent) const {
    const auto line = static_cast<size_t>(print_options().linewidth);
    const int64_t edge = print_options().edgeitems;
    const size_t per_line = std::max<size_t>(1, (line - std::min(line, indent)) / (width_ + 2));
    std::vector<std::string> texts;
    const int64_t size = row.size(0);
    for (int64_t i = 0; i < size; ++i) {
      if (summarized(size) && i == edge) {
        texts.emplace_back(" ...");
        i = size - edge;
      }
      texts.push_back(padded(row[i]));
    }
    out << "[";
    for (size_t i = 0; i < texts.size(); ++i) {
      if (i > 0) out << ",";
      if (i > 0 && i % per_line == 0) {
        out << "\n" << std::string(indent + 1, ' ');
      } else if (i > 0) {
        out << " ";
      }
      out << texts[i];
    }
    out << "]";
  }

  void write(std::ostream& out, const at::Tensor& part, size_t indent) const {
    if (part.dim() == 0) {
      out << raw(part);
      return;
    }
    if (part.dim() == 1) {
      write_row(out, part, indent);
      return;
    }
    const int64_t size = part.size(0), edge = print_options().edgeitems;
    const std::string gap = "," + std::string(static_cast<size_t>(part.dim() - 1), '\n') + std::string(indent + 1, ' ');
    out << "[";
    for (int64_t i = 0; i < size; ++i) {
      if (i > 0) out << gap;
      if (summarized(size) && i == edge) {
        out << "..." << gap;
        i = size - edge;
      }
      write(out, part[i], indent + 1);
    }
    out << "]";
  }

  at::Tensor tensor_;
  NumberFormat format_;
  size_t width_ = 0;
};

bool is_default_dtype(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::get_default_dtype_as_scalartype() || tensor.scalar_type() == at::kLong ||
         tensor.scalar_type() == at::kBool;
}

void write_attributes(std::ostream& out, const at::Tensor& tensor) {
  if (is_deferred(tensor)) out << ", deferred";
  if (!is_default_dtype(tensor) || tensor.numel() == 0) out << ", dtype=" << dtype_name(tensor.scalar_type());
  if (!tensor.device().is_cpu()) out << ", device='" << tensor.device() << "'";
  if (gives_no_gradient(tensor)) {
    out << ", grad_fn=<Invalid>";
  } else if (const auto& node = tensor.grad_fn()) {
    out << ", grad_fn=<" << node->name() << ">";
  } else if (tensor.requires_grad()) {
    out << ", requires_grad=True";
  }
}

void write_elements(std::ostream& out, const at::Tensor& tensor, size_t indent) {
  const at::NoGradGuard no_grad;
  if (tensor.numel() == 0) {
    out << "[]";
    if (tensor.dim() != 1) out << ", size=" << tensor.sizes();
    return;
  }
  if (is_fake(tensor)) {
    out << "..., size=" << tensor.sizes() << ", not computed";
    return;
  }
  Elements(tensor.detach().cpu()).write(out, indent);
}

int64_t at_least(int64_t value, int64_t least, const char* name) {
  TORCH_CHECK_VALUE(value >= least && value <= 1'000'000'000, "set_printoptions: ", name, " is ", value, ", expected ",
                    least, " or more");
  return value;
}

/// mh.set_printoptions({precision = nil, threshold = nil, edgeitems = nil, linewidth = nil, profile = nil,
///     sci_mode = nil}) -> nothing
///   How this rank prints tensors; what is left out stays as it is.
///   precision   integer?    digits behind the point, 4 at the start
///   threshold   integer?    elements of a tensor that is printed in full, 1000 at the start
///   edgeitems   integer?    elements at both ends of each dim of a larger one, 3 at the start
///   linewidth   integer?    letters of a line, 80 at the start
///   profile     "default"|"short"|"full"?   the values of the start, with 2 digits, or all elements; others go first
///   sci_mode    boolean?    whether numbers have an exponent; as the numbers need it at the start
///   returns     nothing
///   collective  no
///   errors      ValueError: a number that is too small, an unknown profile
///   example
///     mh.set_printoptions{precision = 2}
///     print(mh.tensor{1.2345, 2.5})    --> tensor([1.23, 2.50])
///     mh.set_printoptions{profile = "default"}
int set_printoptions(lua_State* lua) {
  const Options given(lua, 1, "set_printoptions",
                      {"precision", "threshold", "edgeitems", "linewidth", "profile", "sci_mode"});
  PrintOptions next = print_options();
  if (given.has("profile")) {
    const std::string profile = given.get_string("profile", "");
    TORCH_CHECK_VALUE(profile == "default" || profile == "short" || profile == "full",
                      "set_printoptions: unknown profile '", profile, "'\n  have  default, short, full");
    next = PrintOptions();
    if (profile == "short") next.precision = 2, next.edgeitems = 2;
    if (profile == "full") next.threshold = 1'000'000'000;
  }
  next.precision = at_least(given.get_int("precision", next.precision), 0, "precision");
  TORCH_CHECK_VALUE(next.precision <= 60, "set_printoptions: precision is ", next.precision, ", expected at most 60");
  next.threshold = at_least(given.get_int("threshold", next.threshold), 0, "threshold");
  next.edgeitems = at_least(given.get_int("edgeitems", next.edgeitems), 1, "edgeitems");
  next.linewidth = at_least(given.get_int("linewidth", next.linewidth), 1, "linewidth");
  if (given.has("sci_mode")) next.sci_mode = given.get_bool("sci_mode", false);
  print_options() = next;
  return 0;
}

const luaL_Reg kPrintFunctions[] = {{"set_printoptions", guard<set_printoptions>}, {nullptr, nullptr}};

const Binding print_binding{"print_tensor", [](lua_State* lua) { add_functions(lua, kPrintFunctions); }};

}  // namespace

std::string tensor_text(const at::Tensor& tensor) {
  std::ostringstream out;
  if (!tensor.defined()) return "tensor(undefined)";
  if (is_shard_tensor(tensor)) {
    const at::NoGradGuard no_grad;
    out << "ShardTensor(shape=" << tensor.sizes() << ", " << spec(tensor)->to_string();
    write_attributes(out, tensor);
    const std::string local = "\n  local=";
    out << "," << local;
    write_elements(out, to_local(tensor), local.size() - 1);
    out << ")";
    return out.str();
  }
  const std::string open = "tensor(";
  out << open;
  if (tensor.is_meta() || is_deferred(tensor)) {
    out << "..., size=" << tensor.sizes();
  } else if (tensor.layout() != at::kStrided) {
    out << "..., layout=" << tensor.layout() << ", size=" << tensor.sizes();
  } else {
    write_elements(out, tensor, open.size());
  }
  write_attributes(out, tensor);
  out << ")";
  return out.str();
}

}  // namespace moonhalo::scripting
