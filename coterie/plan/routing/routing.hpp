// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: routing traces and what follows from them.
#include "coterie/plan/routing/expert_sets.hpp"
