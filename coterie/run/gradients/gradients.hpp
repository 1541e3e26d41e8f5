// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: dense gradients, cut and summed over ranks in the gaps of a backward pass.
#include "coterie/run/gradients/gradient_queue.hpp"
#include "coterie/run/gradients/gradient_sender.hpp"
