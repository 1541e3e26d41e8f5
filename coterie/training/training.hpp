// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: optimizer, schedules, data order, checkpoints that reshard, the trainer.
#include "coterie/training/adamw.hpp"
#include "coterie/training/checkpoint_folder.hpp"
#include "coterie/training/data_order.hpp"
#include "coterie/training/decoder_model.hpp"
#include "coterie/training/gathered_tensors.hpp"
#include "coterie/training/gradient_norm.hpp"
#include "coterie/training/learning_rate.hpp"
#include "coterie/training/lora.hpp"
#include "coterie/training/machine.hpp"
#include "coterie/training/memory_plan.hpp"
#include "coterie/training/metrics.hpp"
#include "coterie/training/model.hpp"
#include "coterie/training/parameter.hpp"
#include "coterie/training/recipe.hpp"
#include "coterie/training/state_files.hpp"
#include "coterie/training/strict_object.hpp"
#include "coterie/training/token_streams.hpp"
#include "coterie/training/trainer.hpp"
#include "coterie/training/training_data.hpp"
#include "coterie/training/tune.hpp"
