// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: how good a model is, and what changes to its routing cost.
#include "coterie/evaluation/bits_per_byte.hpp"
#include "coterie/evaluation/expert_similarity.hpp"
#include "coterie/evaluation/paired_interval.hpp"
#include "coterie/evaluation/score_tasks.hpp"
#include "coterie/evaluation/task_file.hpp"
#include "coterie/evaluation/text_sequences.hpp"
