// SPDX-License-Identifier: Apache-2.0
/// The GPU kernels behind plain C functions, for the Python programs beside this file. Each returns
/// nullptr or the message of what went wrong.
#include <string>

#include "bench/expert_layer_gpu/guarded.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace {

namespace cuda = coterie::kernels::cuda;
using coterie::kernels::ConstMatrixView;
using coterie::kernels::DType;
using coterie::kernels::MatrixView;

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
      s->intermediate, type_of(s)));
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
    cuda::gather_rows(
        {rows_of(s, from, s->num_tokens, s->hidden), index, out_rows(s, to, num_rows, s->hidden)},
        stream_of(s));
  });
}

/// Gathers from two matrices of num_tokens and more_rows rows.
const char* gather_two(const Sizes* s, const void* from, const void* more, std::int64_t more_rows,
                       const std::int32_t* index, std::int64_t num_rows, void* to) {
  return guarded([&] {
    const ConstMatrixView second = rows_of(s, more, more_rows, s->hidden);
    cuda::gather_rows({rows_of(s, from, s->num_tokens, s->hidden),
                       index,
                       out_rows(s, to, num_rows, s->hidden),
                       {&second, 1}},
                      stream_of(s));
  });
}

const char* scatter_rows(const Sizes* s, const void* from, const std::int32_t* index,
                         std::int64_t num_rows, void* to, std::int64_t to_rows,
                         std::int64_t to_stride) {
  return guarded([&] {
    const MatrixView target{to, to_rows, s->hidden, to_stride, type_of(s)};
    cuda::scatter_rows({rows_of(s, from, num_rows, s->hidden), index, target}, stream_of(s));
  });
}

/// grouped_up with everything: x of num_tokens rows and more_x, bias, activation, stride, pre.
const char* up_full(const Sizes* s, const void* x, const void* more_x, std::int64_t more_rows,
                    const std::int32_t* row_token, const std::int32_t* offsets, const void* gate_up,
                    const void* bias, std::int64_t activation, void* hidden, std::int64_t stride,
                    void* pre) {
  return guarded([&] {
    const std::int64_t pairs = s->num_tokens * s->top_k;
    cuda::GroupedUp task;
    const ConstMatrixView second = rows_of(s, more_x, more_rows, s->hidden);
    task.x = rows_of(s, x, s->num_tokens, s->hidden);
    task.more_x = {&second, more_x == nullptr ? 0U : 1U};
    task.row_token = row_token;
    task.expert_offsets = offsets;
    task.activation = static_cast<coterie::kernels::Activation>(activation);
    const std::int64_t width =
        s->intermediate * coterie::kernels::pre_activations_per_hidden(task.activation);
    task.gate_up = {gate_up, s->num_experts, width, s->hidden, type_of(s)};
    task.bias = bias;
    task.hidden = {hidden, pairs, s->intermediate, stride, type_of(s)};
    if (pre != nullptr) {
      task.pre = out_rows(s, pre, pairs, width);
    }
    cuda::grouped_up(task, options_of(s), stream_of(s));
  });
}

/// grouped_down with everything: bias, stride, fp32 rows.
const char* down_full(const Sizes* s, const void* hidden, const std::int32_t* offsets,
                      const void* down, const void* bias, void* rows, std::int64_t stride,
                      std::int64_t fp32) {
  return guarded([&] {
    const std::int64_t pairs = s->num_tokens * s->top_k;
    cuda::GroupedDown task;
    task.hidden = rows_of(s, hidden, pairs, s->intermediate);
    task.expert_offsets = offsets;
    task.down = {down, s->num_experts, s->hidden, s->intermediate, type_of(s)};
    task.bias = bias;
    task.rows = {rows, pairs, s->hidden, stride, fp32 != 0 ? DType::kFloat32 : type_of(s)};
    cuda::grouped_down(task, options_of(s), stream_of(s));
  });
}

/// Which path the sizes' options stand for here; always a message.
const char* path_of(const Sizes* s) {
  static thread_local std::string text;
  const char* const error =
      guarded([&] { text = cuda::to_string(cuda::choose_path(options_of(s).path, type_of(s))); });
  return error != nullptr ? error : text.c_str();
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
