// SPDX-License-Identifier: Apache-2.0
/// The GPU kernels behind plain C functions, for the Python programs beside this file. Each returns
/// nullptr or the message of what went wrong.
#include <string>

#include "coterie/run/kernels/kernels.hpp"

namespace {

namespace cuda = coterie::kernels::cuda;
using coterie::kernels::ConstMatrixView;
using coterie::kernels::DType;
using coterie::kernels::MatrixView;

template <typename Call>
const char* guarded(const Call& call) {
  static thread_local std::string message;
  try {
    call();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

}  // namespace

extern "C" {

/// Sizes of a layer; the same struct in ours.py.
struct Sizes {
  std::int64_t num_tokens;
  std::int64_t hidden;
  std::int64_t intermediate;
  std::int64_t num_experts;
  std::int64_t top_k;
  std::int64_t tiles;
  std::int64_t path;
  std::int64_t type;
  unsigned* watchdog;
  void* stream;
};

static cuda::Stream stream_of(const Sizes* s) {
  return static_cast<cuda::Stream>(s->stream);
}

static DType type_of(const Sizes* s) {
  return static_cast<DType>(s->type);
}

static MatrixView out_rows(const Sizes* s, void* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, columns, type_of(s)};
}

static ConstMatrixView rows_of(const Sizes* s, const void* data, std::int64_t rows,
                               std::int64_t columns) {
  return {data, rows, columns, columns, type_of(s)};
}

static cuda::ProductOptions options_of(const Sizes* s) {
  return {static_cast<cuda::Path>(s->path), static_cast<cuda::Tiles>(s->tiles), s->watchdog};
}

std::int64_t workspace_bytes(const Sizes* s) {
  return static_cast<std::int64_t>(cuda::expert_layer_workspace_bytes(
      s->num_tokens, static_cast<int>(s->top_k), static_cast<int>(s->num_experts), s->hidden,
      s->intermediate));
}

const char* expert_layer(const Sizes* s, const void* x, const std::int32_t* ids,
                         const float* weights, const void* gate_up, const void* down, void* y,
                         void* workspace, std::int64_t bytes, void* faults) {
  return guarded([&] {
    cuda::ExpertLayer task;
    task.x = rows_of(s, x, s->num_tokens, s->hidden);
    task.ids = ids;
    task.weights = weights;
    task.top_k = static_cast<int>(s->top_k);
    task.gate_up = {gate_up, s->num_experts, 2 * s->intermediate, s->hidden, type_of(s)};
    task.down = {down, s->num_experts, s->hidden, s->intermediate, type_of(s)};
    task.y = out_rows(s, y, s->num_tokens, s->hidden);
    task.workspace = workspace;
    task.workspace_bytes = static_cast<std::size_t>(bytes);
    task.faults = static_cast<cuda::Faults*>(faults);
    cuda::expert_layer(task, options_of(s), stream_of(s));
  });
}

const char* reindex(const Sizes* s, const std::int32_t* ids, std::int32_t* offsets,
                    std::int32_t* row_token, std::int32_t* pos_of, void* workspace, void* faults) {
  return guarded([&] {
    cuda::build_reindex({ids,
                         s->num_tokens,
                         static_cast<int>(s->top_k),
                         static_cast<int>(s->num_experts),
                         {offsets, row_token, pos_of},
                         workspace,
                         static_cast<cuda::Faults*>(faults)},
                        stream_of(s));
  });
}

const char* grouped_up(const Sizes* s, const void* x, const std::int32_t* row_token,
                       const std::int32_t* offsets, const void* gate_up, void* hidden) {
  return guarded([&] {
    const std::int64_t pairs = s->num_tokens * s->top_k;
    cuda::grouped_up({rows_of(s, x, s->num_tokens, s->hidden),
                      row_token,
                      offsets,
                      {gate_up, s->num_experts, 2 * s->intermediate, s->hidden, type_of(s)},
                      out_rows(s, hidden, pairs, s->intermediate)},
                     options_of(s), stream_of(s));
  });
}

const char* grouped_down(const Sizes* s, const void* hidden, const std::int32_t* offsets,
                         const void* down, void* rows) {
  return guarded([&] {
    const std::int64_t pairs = s->num_tokens * s->top_k;
    cuda::grouped_down({rows_of(s, hidden, pairs, s->intermediate),
                        offsets,
                        {down, s->num_experts, s->hidden, s->intermediate, type_of(s)},
                        out_rows(s, rows, pairs, s->hidden)},
                       options_of(s), stream_of(s));
  });
}

const char* merge_rows(const Sizes* s, const void* rows, const std::int32_t* pos_of,
                       const float* weights, void* y, std::int64_t fp32) {
  return guarded([&] {
    cuda::merge_rows({rows_of(s, rows, s->num_tokens * s->top_k, s->hidden), pos_of, weights,
                      static_cast<int>(s->top_k),
                      MatrixView{y, s->num_tokens, s->hidden, s->hidden,
                                 fp32 != 0 ? DType::kFloat32 : DType::kBfloat16}},
                     stream_of(s));
  });
}

const char* gather_rows(const Sizes* s, const void* from, const std::int32_t* index,
                        std::int64_t num_rows, void* to) {
  return guarded([&] {
    cuda::gather_rows({from, s->hidden * 2, index, num_rows, to, s->hidden * 2, s->hidden * 2},
                      stream_of(s));
  });
}

const char* topk_gate(const Sizes* s, const float* logits, std::int64_t sigmoid,
                      std::int64_t renormalise, std::int32_t* ids, float* weights, void* faults) {
  return guarded([&] {
    cuda::TopkGate task;
    task.logits = logits;
    task.num_tokens = s->num_tokens;
    task.logits_stride = s->num_experts;
    task.num_experts = static_cast<int>(s->num_experts);
    task.top_k = static_cast<int>(s->top_k);
    task.scores = sigmoid != 0 ? cuda::Scores::kSigmoid : cuda::Scores::kSoftmax;
    task.renormalise = renormalise != 0;
    task.ids = ids;
    task.weights = weights;
    task.faults = static_cast<cuda::Faults*>(faults);
    cuda::topk_gate(task, stream_of(s));
  });
}

const char* reset_faults(const Sizes* s, void* faults) {
  return guarded([&] { cuda::reset_faults(static_cast<cuda::Faults*>(faults), stream_of(s)); });
}

const char* check_faults(const Sizes* s, const void* faults, const std::int32_t* ids) {
  return guarded([&] {
    cuda::check_faults(static_cast<const cuda::Faults*>(faults), ids, static_cast<int>(s->top_k),
                       "layer", stream_of(s));
  });
}

}  // extern "C"
