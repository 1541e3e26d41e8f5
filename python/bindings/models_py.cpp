// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <thread>

#include "coterie/base/error.hpp"
#include "coterie/models/models.hpp"
#include "coterie/plan/routing/routing.hpp"
#include "python/bindings/bindings.hpp"

namespace coterie::python {
namespace {

int threads_or_all(int num_threads) {
  return num_threads > 0 ? num_threads
                         : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

struct TraceRequest {
  std::filesystem::path model;
  std::vector<std::pair<std::string, std::filesystem::path>> texts;  ///< (domain, file)
  std::filesystem::path out;
  models::RecordOptions options;
  bool is_bf16 = false;
  int num_threads = 0;
};

std::vector<models::DomainRecord> record(const TraceRequest& request, Progress& progress) {
  std::vector<models::TextSource> sources;
  for (const auto& [domain, file] : request.texts) {
    sources.push_back({domain, file});
  }
  kernels::Threads threads(threads_or_all(request.num_threads));
  models::DecoderOptions options;
  options.execution.threads = &threads;
  options.weight_type = request.is_bf16 ? kernels::DType::kBfloat16 : kernels::DType::kFloat32;
  models::Decoder decoder(request.model, options);
  for (const std::string& remark : decoder.checkpoint().remarks()) {
    progress.warn(remark);
  }
  const auto tokenizer = models::Tokenizer::from_file(request.model / "tokenizer.json");
  return models::record_trace(decoder, tokenizer, sources, request.options, request.out, progress);
}

}  // namespace

void bind_models(py::module_& module) {
  module.def("record_trace", [](const std::filesystem::path& model,
                                std::vector<std::pair<std::string, std::filesystem::path>> texts,
                                const std::filesystem::path& out, std::int64_t max_tokens,
                                std::int64_t sequence_length, bool with_weights,
                                const std::string& dtype, int num_threads, py::object progress) {
    COTERIE_REQUIRE(dtype == "fp32" || dtype == "bf16", "dtype: \"", dtype,
                    "\" is neither fp32 nor bf16");
    TraceRequest request{model, std::move(texts), out, {}, dtype == "bf16", num_threads};
    request.options.max_tokens = max_tokens;
    request.options.sequence_length = sequence_length;
    request.options.with_weights = with_weights;
    PythonProgress listener(std::move(progress));
    std::vector<models::DomainRecord> records;
    {
      const py::gil_scoped_release release;
      records = record(request, listener);
    }
    py::list result;
    for (const auto& each : records) {
      result.append(to_python(Json{{"domain", each.domain},
                                   {"files", each.num_files},
                                   {"sequences", each.num_sequences},
                                   {"tokens", each.num_tokens},
                                   {"bytes", each.num_bytes}}));
    }
    return result;
  });
  module.def("permute_checkpoint",
             [](const std::filesystem::path& model, const placement::Placement& placed,
                const std::filesystem::path& out, py::object progress) {
               PythonProgress listener(std::move(progress));
               const py::gil_scoped_release release;
               models::permute_checkpoint(model, placed, out, listener);
             });
  module.def(
      "model_fingerprint",
      [](const std::filesystem::path& model) {
        return models::model_fingerprint(models::Checkpoint(model),
                                         models::read_model_config(model));
      },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace coterie::python
