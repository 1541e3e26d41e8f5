// SPDX-License-Identifier: Apache-2.0
// Lets Python tests use our reader and writer: `check MODEL...` opens each and says, a line each,
// ok or the refusal; `copy MODEL FOLDER [MAX_SHARD_BYTES]` writes all tensors anew.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/models/models.hpp"

namespace {

using namespace coterie::models;

void check(const std::string& model) {
  try {
    std::printf("ok %zu tensors\n", Checkpoint(model).tensors().size());
  } catch (const coterie::Error& error) {
    std::printf("refused %d: %s\n", coterie::exit_code_of(error.code()), error.what());
  }
}

void copy(const std::vector<std::string>& arguments) {
  const Checkpoint checkpoint(arguments.at(1));
  std::vector<OutgoingTensor> tensors;
  for (const Tensor& tensor : checkpoint.tensors()) {
    tensors.push_back(unchanged(tensor));
  }
  const std::uint64_t limit =
      arguments.size() > 3 ? std::strtoull(arguments[3].c_str(), nullptr, 10) : kMaxShardBytes;
  write_checkpoint(arguments.at(2), tensors, limit);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.at(0) == "copy") {
      copy(arguments);
    }
    for (std::size_t i = 1; arguments[0] == "check" && i < arguments.size(); ++i) {
      check(arguments[i]);
    }
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
