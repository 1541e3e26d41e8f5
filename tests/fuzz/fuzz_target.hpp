// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coterie::fuzz {

/// A reader of files from outside. `read` takes any bytes: it may throw coterie::Error (but not
/// with ErrorCode::kInternal, which tells of a fault of ours) and must not fail in any other way.
struct Target {
  const char* name;
  void (*read)(std::string_view bytes);
  /// Valid inputs to start from.
  std::vector<std::string> (*seeds)();
};

// Each is defined in the file of its name: here, or with the tests of its room.
extern const Target kJson;         // base: JSON text and typed access to it
extern const Target kTokenizer;    // tokenizer.json, then a 0 byte, then a text to encode
extern const Target kSafetensors;  // a safetensors file
extern const Target kPlacement;    // a placement file
extern const Target kTrace;        // a routing trace of any kind, told by its content
extern const Target kCluster;      // a cluster profile
extern const Target kPlan;         // a plan file
extern const Target kTimeline;     // a timeline

/// All targets of this build.
std::vector<const Target*> targets();

/// Calls target.read; rethrows what it must not throw: other exceptions, and kInternal.
void read_safely(const Target& target, std::string_view bytes);

/// A file in memory that holds `bytes`, for readers that want a path. Valid until the next call.
std::filesystem::path file_of(std::string_view bytes);

}  // namespace coterie::fuzz
