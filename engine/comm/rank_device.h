// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// "cpu", "cuda", "cuda:1", or another device that LibTorch knows; nothing for other texts, and for "meta".
std::optional<c10::Device> parse_compute_device(const std::string& name);
/// Counts the devices of this type that can be used here.
int64_t device_count(c10::DeviceType type);

/// Returns the device that this rank computes on where `wanted` is asked for. With a number it is that one, which ranks
/// may share. Without, each rank of a host gets a device of its own (those that see the same devices get them in rank
/// order), and a group of one keeps the device of its thread. ValueError on every rank alike when devices are too few.
/// Collective; the ranks of a host may be processes or threads.
c10::Device device_of_rank(Communicator& group, c10::Device wanted);

/// The name of the ranks' devices for init_device_mesh: with a number if they all have the same one, "cuda:0", else
/// "cuda". Collective.
std::string shared_device_name(Communicator& group, c10::Device device);

/// Makes `device` the one of this thread. A backward pass then stays on the calling thread, because a thread of the
/// device would serve all its ranks, and a collective in it would wait for itself.
void use_device(c10::Device device);

}  // namespace moonhalo
