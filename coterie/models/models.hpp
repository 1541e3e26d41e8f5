// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: checkpoints in and out, configurations, decoders,
/// routing traces of text, checkpoints with experts in another order.
#include "coterie/models/checkpoint.hpp"
#include "coterie/models/checkpoint_writer.hpp"
#include "coterie/models/decoder.hpp"
#include "coterie/models/element_type.hpp"
#include "coterie/models/model_config.hpp"
#include "coterie/models/model_placement.hpp"
#include "coterie/models/new_folder.hpp"
#include "coterie/models/permute.hpp"
#include "coterie/models/record_trace.hpp"
#include "coterie/models/safetensors_file.hpp"
#include "coterie/models/streaming_decoder.hpp"
#include "coterie/models/tokenizer.hpp"
#include "coterie/models/trainable_config.hpp"
#include "coterie/models/trainable_decoder.hpp"
#include "coterie/models/trainable_options.hpp"
#include "coterie/models/trainable_parameter.hpp"
