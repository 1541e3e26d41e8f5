// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: ranks that exchange bytes.
#include "coterie/run/comm/communicator.hpp"
#include "coterie/run/comm/fake.hpp"
#include "coterie/run/comm/group.hpp"
#include "coterie/run/comm/named_group.hpp"
#include "coterie/run/comm/rank_environment.hpp"
#include "coterie/run/comm/single.hpp"
#include "coterie/run/comm/start_ranks.hpp"
