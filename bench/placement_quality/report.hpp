// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace coterie::bench {

/// Figures on real routing in `data` (OLMoE and LLaMA-MoE CSV files) as Markdown. Sets `passed` to
/// false if a bar is missed.
std::string report_quality(const std::filesystem::path& data, bool& passed);

/// Time and memory on large synthetic routing; a trace of 1M tokens x 16 layers is written to
/// `scratch` and removed. As report_quality.
std::string report_large(const std::filesystem::path& scratch, bool& passed);

}  // namespace coterie::bench
