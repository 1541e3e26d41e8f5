// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: the operations of one MoE layer on one device.
///
/// Law of all products here: a row's bits depend on that row and on the weights alone, never on the
/// number of rows, on the other rows or on the number of threads (for a fixed back end and
/// machine).
#include "coterie/run/kernels/activation.hpp"
#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/bfloat16.hpp"
#include "coterie/run/kernels/experts.hpp"
#include "coterie/run/kernels/experts_backward.hpp"
#include "coterie/run/kernels/gate.hpp"
#include "coterie/run/kernels/kernels_backward_cuda.hpp"
#include "coterie/run/kernels/kernels_cuda.hpp"
#include "coterie/run/kernels/kernels_decoder_cuda.hpp"
#include "coterie/run/kernels/linear.hpp"
#include "coterie/run/kernels/rows.hpp"
#include "coterie/run/kernels/tensor_view.hpp"
#include "coterie/run/kernels/threads.hpp"
#include "coterie/run/kernels/weight_gradient.hpp"
