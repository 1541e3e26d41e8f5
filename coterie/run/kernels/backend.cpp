// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/backend.hpp"

#include <array>
#include <cstdlib>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/product.hpp"

namespace coterie::kernels {
namespace {

constexpr std::array kBySpeed = {Backend::kReference, Backend::kGeneric, Backend::kAvx2,
                                 Backend::kAvx512, Backend::kAvx512Bf16};

#if defined(__x86_64__)
// __builtin_cpu_supports reads CPUID and, for AVX and AVX-512, whether the system saves the
// registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#else
bool has_avx2() {
  return false;
}
bool has_avx512() {
  return false;
}
bool has_avx512_bf16() {
  return false;
}
#endif

}  // namespace

const char* name_of(Backend backend) noexcept {
  switch (backend) {
    case Backend::kAutomatic: return "automatic";
    case Backend::kReference: return "reference";
    case Backend::kGeneric: return "generic";
    case Backend::kAvx2: return "avx2";
    case Backend::kAvx512: return "avx512";
    case Backend::kAvx512Bf16: return "avx512_bf16";
  }
  return "unknown";
}

Backend parse_backend(std::string_view name, const std::string& source) {
  if (name == name_of(Backend::kAutomatic)) {
    return Backend::kAutomatic;
  }
  for (const Backend backend : kBySpeed) {
    if (name == name_of(backend)) {
      return backend;
    }
  }
  fail(ErrorCode::kBadInput, source, " is \"", name,
       "\"; expected automatic, reference, generic, avx2, avx512 or avx512_bf16");
}

bool is_available(Backend backend) noexcept {
  switch (backend) {
    case Backend::kAutomatic:
    case Backend::kReference:
    case Backend::kGeneric: return true;
    case Backend::kAvx2: return has_avx2();
    case Backend::kAvx512: return has_avx512();
    case Backend::kAvx512Bf16: return has_avx512_bf16();
  }
  return false;
}

std::vector<Backend> available_backends() {
  std::vector<Backend> found;
  for (const Backend backend : kBySpeed) {
    if (is_available(backend)) {
      found.push_back(backend);
    }
  }
  return found;
}

Backend resolve_backend(Backend backend) {
  const char* source = "kernel back end";
  if (backend == Backend::kAutomatic) {
    if (const char* wish = std::getenv("COTERIE_KERNELS"); wish != nullptr && *wish != '\0') {
      source = "COTERIE_KERNELS";
      backend = parse_backend(wish, source);
    }
  }
  if (backend == Backend::kAutomatic) {
    return available_backends().back();
  }
  if (!is_available(backend)) {
    fail(ErrorCode::kUnsupported, source, ": this machine cannot run ", name_of(backend),
         "; its best is ", name_of(available_backends().back()));
  }
  return backend;
}

}  // namespace coterie::kernels
