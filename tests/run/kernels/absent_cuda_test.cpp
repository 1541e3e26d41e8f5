// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::kernels {
namespace {

TEST(AbsentCuda, OperationsSayWhatIsMissing) {
  EXPECT_FALSE(cuda::is_built());
  try {
    cuda::expert_layer({}, {}, nullptr);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("expert_layer: this build has no CUDA kernels"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace coterie::kernels
