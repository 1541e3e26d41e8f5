// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: where experts live.
#include "coterie/plan/placement/layer_placement.hpp"
