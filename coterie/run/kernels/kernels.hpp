// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: the operations of one MoE layer on one device.
#include "coterie/run/kernels/tensor_view.hpp"
