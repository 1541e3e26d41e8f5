// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/exchange_form.hpp"

#include "coterie/base/error.hpp"

namespace coterie::exchange {

const char* name_of(ExchangeForm form) noexcept {
  return form == ExchangeForm::kPerDevice ? "per_device" : "per_expert";
}

ExchangeForm exchange_form_of(std::string_view name) {
  for (const ExchangeForm form : {ExchangeForm::kPerDevice, ExchangeForm::kPerExpert}) {
    if (name == name_of(form)) {
      return form;
    }
  }
  fail(ErrorCode::kBadInput, "exchange form \"", name, "\" is not per_device or per_expert");
}

void check_exchange_options(const ExchangeOptions& options) {
  COTERIE_REQUIRE(options.partial_type == kernels::DType::kFloat32 ||
                      options.partial_type == kernels::DType::kBfloat16,
                  "partial sums travel as float32 or bfloat16 only");
  COTERIE_REQUIRE(options.max_expanded_rows > 0, "max_expanded_rows is ",
                  options.max_expanded_rows);
}

}  // namespace coterie::exchange
