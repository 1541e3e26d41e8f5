// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/log.hpp"

namespace coterie {

NoProgress& NoProgress::instance() {
  static NoProgress progress;
  return progress;
}

}  // namespace coterie
