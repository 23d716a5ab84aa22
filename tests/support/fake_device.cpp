// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <mutex>

#include "tests/support/fake_memory.h"

namespace moonhalo::testing::fake {
namespace {

thread_local Counts counted;
thread_local std::map<std::string, int64_t> launched;
std::atomic<bool> lost_of_pool{false}, lost_of_default{false}, lost_of_host{false};
thread_local int inside = 0;

c10::Device valid(c10::Device device) {
  TORCH_CHECK_VALUE(device.index() < kDevices, "fake device: no device ", static_cast<int>(device.index()),
                    "\n  have  ", kDevices, " devices\n  fix   name one of them");
  return device;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Device getDevice() const override { return device(current_device()); }
  void setDevice(c10::Device expected) const override { uncheckedSetDevice(valid(expected)); }
  void uncheckedSetDevice(c10::Device expected) const noexcept override {
    if (expected.index() >= 0) exchange_device(expected.index());
  }
  c10::Device exchangeDevice(c10::Device expected) const override {
    const c10::Device before = getDevice();
    setDevice(expected);
    return before;
  }

  c10::Stream getStream(c10::Device of) const override { return current_stream(index(of)); }
  c10::Stream getDefaultStream(c10::Device of) const override { return default_stream(index(of)); }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override { return stream_of_pool(index(of)); }
  c10::Stream getNewStream(c10::Device of, int) const override { return stream_of_pool(index(of)); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return handle_of(stream); }
  bool queryStream(const c10::Stream& stream) const override { return finished(stream); }
  void synchronizeStream(const c10::Stream& stream) const override {
    if (host_waits_here()) finish(stream);
  }
  void synchronizeDevice(const c10::DeviceIndex of) const override {
    if (host_waits_here()) finish_device(of);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    count_event();
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->record(stream);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void block(void* event, const c10::Stream& stream) const override {
    const bool lost = stream.id() == 0 ? lost_of_default : lost_of_pool;
    if (event != nullptr && !lost) static_cast<Event*>(event)->hold_back(stream);
  }
  bool queryEvent(void* event) const override { return event == nullptr || static_cast<Event*>(event)->finished(); }
  void synchronizeEvent(void* event) const override {
    if (host_waits_here() && event != nullptr) static_cast<Event*>(event)->finish();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    note_use(data, stream);
  }

 private:
  static int index(c10::Device of) { return of.has_index() ? of.index() : current_device(); }
  static bool host_waits_here() {
    count_host_wait();
    return !lost_of_host;
  }
};

// As those of real devices, it is not for kernels of the CPU: what asks for it by mistake ends in an error.
struct DeviceGenerator final : at::CPUGeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex index) : at::CPUGeneratorImpl(1234) {
    device_ = c10::Device(c10::DeviceType::PrivateUse1, index);
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  Hooks() {
    for (int i = 0; i < kDevices; ++i)
      generators_.push_back(at::make_generator<DeviceGenerator>(static_cast<c10::DeviceIndex>(i)));
  }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex expected) const override { exchange_device(expected); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex expected) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(expected));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex expected) const override { return exchangeDevice(expected); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex of) const override {
    return generators_[of < 0 ? current_device() : of];
  }
  at::Generator getNewGenerator(c10::DeviceIndex of) const override { return at::make_generator<DeviceGenerator>(of); }

 private:
  std::vector<at::Generator> generators_;
};

}  // namespace

InsideDevice::InsideDevice() { ++inside; }
InsideDevice::~InsideDevice() { --inside; }

void count_launch(const std::string& name) {
  if (inside > 0) return;
  ++counted.launches;
  ++launched[name];
}
void count_host_copy(size_t bytes) {
  if (inside > 0) return;
  ++counted.host_copies;
  counted.host_bytes += static_cast<int64_t>(bytes);
}
void count_pageable() { counted.pageable += inside == 0; }
void count_host_wait() { counted.host_waits += inside == 0; }
void count_event() { counted.events += inside == 0; }

Counts Counts::operator-(const Counts& before) const {
  return {launches - before.launches, host_copies - before.host_copies, host_bytes - before.host_bytes,
          pageable - before.pageable, host_waits - before.host_waits,   events - before.events};
}
Counts counts() { return counted; }
const std::map<std::string, int64_t>& launches_by_operator() { return launched; }

void lose(const Lost& waits) {
  lost_of_pool = waits.of_pool_streams;
  lost_of_default = waits.of_default_streams;
  lost_of_host = waits.of_the_host;
}

c10::Device device(int index) { return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)); }

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::register_privateuse1_backend("fake");
    c10::SetAllocator(c10::kPrivateUse1, &device_allocator());
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    c10::impl::registerDeviceGuard(c10::kPrivateUse1, new Guard);
    register_operators();
    register_kernels();
  });
}

}  // namespace moonhalo::testing::fake
