// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/codecs/number_codecs.h"

#include <c10/util/Exception.h>

#include <cstring>

namespace moonhalo::io {
namespace {

template <typename Number>
Number number_at(const char* in, size_t i) {
  Number number;
  std::memcpy(&number, in + i * sizeof(Number), sizeof(Number));
  return number;
}

/// Integers wrap around, so the unsigned ones of a size serve all of it.
template <typename Number>
void add_up(const char* in, size_t count, char* out) {
  Number sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum = static_cast<Number>(sum + number_at<Number>(in, i));
    std::memcpy(out + i * sizeof(Number), &sum, sizeof(Number));
  }
}

template <typename Number, typename Float>
void unscale(const Codec& codec, const char* in, size_t count, char* out) {
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<Float>(static_cast<double>(number_at<Number>(in, i)) / codec.scale + codec.offset);
    std::memcpy(out + i * sizeof(Float), &value, sizeof(Float));
  }
}

template <typename Number>
void unscale(const Codec& codec, const char* in, size_t count, char* out) {
  codec.element_size == sizeof(float) ? unscale<Number, float>(codec, in, count, out)
                                      : unscale<Number, double>(codec, in, count, out);
}

/// Calls work with a number of an integer type.
template <typename Work>
bool for_integer(at::ScalarType type, const Work& work) {
  switch (type) {
    case at::kChar:
      return work(int8_t{}), true;
    case at::kByte:
      return work(uint8_t{}), true;
    case at::kShort:
      return work(int16_t{}), true;
    case at::kUInt16:
      return work(uint16_t{}), true;
    case at::kInt:
      return work(int32_t{}), true;
    case at::kUInt32:
      return work(uint32_t{}), true;
    case at::kLong:
      return work(int64_t{}), true;
    case at::kUInt64:
      return work(uint64_t{}), true;
    default:
      return false;
  }
}

}  // namespace

size_t made_bytes(const Codec& codec) { return c10::elementSize(codec.numbers); }

size_t given_bytes(const Codec& codec) {
  return codec.kind == Codec::Kind::kScaled ? codec.element_size : made_bytes(codec);
}

bool numbers_known(const Codec& codec) {
  const bool integer = for_integer(codec.numbers, [](auto) {});
  if (codec.kind == Codec::Kind::kDelta) return integer || codec.numbers == at::kFloat || codec.numbers == at::kDouble;
  return integer && (codec.element_size == sizeof(float) || codec.element_size == sizeof(double)) && codec.scale != 0;
}

void undo_numbers(const Codec& codec, const char* in, size_t count, char* out) {
  TORCH_INTERNAL_ASSERT(numbers_known(codec), "numbers of ", codec.numbers);
  if (codec.numbers == at::kFloat) return add_up<float>(in, count, out);
  if (codec.numbers == at::kDouble) return add_up<double>(in, count, out);
  for_integer(codec.numbers, [&](auto number) {
    using Number = decltype(number);
    if (codec.kind == Codec::Kind::kScaled) return unscale<Number>(codec, in, count, out);
    add_up<std::make_unsigned_t<Number>>(in, count, out);
  });
}

}  // namespace moonhalo::io
