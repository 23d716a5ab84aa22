// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/conversion.h"

#include <ATen/ATen.h>

#include <optional>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/formats/catalog.h"
#include "moonhalo/io/formats/file_state.h"

namespace moonhalo::io {
namespace {

AttributeLookup lookup_in(const Catalog& catalog, const std::string& dataset) {
  const auto find = [attributes = catalog.attributes(dataset)](const std::string& name) {
    const auto found = attributes->find(name);
    return found == attributes->end() ? nullptr : &found->second;
  };
  return {[find](const std::string& name) {
            const auto* found = find(name);
            return found ? std::optional(found->value) : std::nullopt;
          },
          [find](const std::string& name) {
            const auto* found = find(name);
            return found ? found->float_bytes : 0;
          },
          [&catalog] { return catalog.has_default_fills; }};
}

std::optional<Decoder> decoder_for(const Selection& selection, const ReadOptions& options, const h5::Where& where) {
  if (!options.decode) return std::nullopt;
  const Dataset& dataset = selection.dataset();
  const auto access = dataset.file()->read(where);
  if (access.catalog) return Decoder::read(lookup_in(*access.catalog, dataset.name()), dataset.dtype(), where);
  const auto handle = dataset.file()->dataset(access.id, dataset.name(), where);
  return Decoder::read(attributes_of(handle->get(), where), dataset.dtype(), where);
}

at::ScalarType dtype_for(const Selection& selection, const ReadOptions& options, const std::optional<Decoder>& decoder,
                         const h5::Where& where) {
  const auto stored = selection.dataset().dtype();
  const auto required = options.dtype           ? options.dtype
                        : options.out.defined() ? std::optional(options.out.scalar_type())
                                                : std::nullopt;
  TORCH_CHECK_VALUE(!options.out.defined() || required == options.out.scalar_type(), where.to_string(),
                    ": `out` has another dtype than asked for\n  have  ", h5::dtype_name(options.out.scalar_type()),
                    "\n  fix   leave dtype out");
  TORCH_CHECK_TYPE(!decoder || !required || at::isFloatingType(*required), where.to_string(),
                   ": decoded values cannot be ", required ? h5::dtype_name(*required) : "",
                   "\n  have  missing values, which become NaN, or a scale"
                   "\n  fix   read as float32 or float64");
  const bool complex = c10::isComplexType(stored);
  TORCH_CHECK_TYPE(
      !required || c10::isComplexType(*required) == complex, where.to_string(), ": ",
      complex ? "complex numbers cannot be read as " + h5::dtype_name(*required) : "numbers cannot be read as complex",
      "\n  have  stored ", h5::dtype_name(stored), "\n  fix   ",
      complex ? "read them as they are and use at::view_as_real" : "read as float and use at::complex");
  TORCH_CHECK_TYPE(!decoder || !complex, where.to_string(),
                   ": complex numbers cannot be decoded\n  have  attributes that scale ", h5::dtype_name(stored),
                   "\n  fix   leave decode out, and scale them yourself");
  return required.value_or(decoder ? decoder->dtype() : stored);
}

}  // namespace

Conversion Conversion::of(const Selection& selection, const ReadOptions& options, const h5::Where& where) {
  auto decoder = decoder_for(selection, options, where);
  const auto dtype = dtype_for(selection, options, decoder, where);
  return {selection.dataset().dtype(), dtype, std::move(decoder)};
}

void Conversion::apply(const at::Tensor& raw, const at::Tensor& target, const h5::Where& where) const {
  const bool computes = !is_fake(raw) && !is_fake(target);
  if (!decoder) {
    if (dtype != stored && at::isIntegralType(dtype, false) && h5::library_converts(stored, dtype)) {
      if (!computes) return;
      h5::convert(raw.const_data_ptr(), stored, target.mutable_data_ptr(), dtype, static_cast<size_t>(raw.numel()),
                  where);
    } else {
      target.copy_(raw);
    }
  } else if (dtype == at::kFloat || dtype == at::kDouble) {
    if (computes) decoder->apply(raw, target);
  } else {
    std::optional<ComputedValues> computed;  // `values` can be larger than both
    if (computes) computed.emplace();
    const at::Tensor values = at::empty(raw.sizes(), at::kFloat);
    if (computes) decoder->apply(raw, values);
    target.copy_(values);
  }
}

}  // namespace moonhalo::io
