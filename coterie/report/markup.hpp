// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

/// What the writers of HTML and SVG share. Not part of the room's door.
namespace coterie::report {

/// Text made safe for element content and quoted attributes. Bytes that are no UTF-8 become U+FFFD,
/// control characters blanks.
std::string escape(std::string_view text);

/// Base64 of bytes, for data: addresses.
std::string base64(std::string_view bytes);

/// The page's style sheet. `num_layers` makes the rules by which a layer's button shows its pane.
std::string style_sheet(std::size_t num_layers);

}  // namespace coterie::report
