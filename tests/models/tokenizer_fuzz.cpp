// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"
#include "coterie/models/tokenizer.hpp"
#include "tests/fuzz/fuzz_target.hpp"

namespace coterie::fuzz {
namespace {

constexpr std::string_view kText =
    "The <s> cafe\xCC\x81 1234  isn't \r\n\t \xE6\xBC\xA2\xE5\xAD\x97 \xF0\x9F\x98\x80 </s>x";

void read(std::string_view bytes) {
  const std::size_t end = bytes.find('\0');
  const auto tokenizer = models::Tokenizer::from_json(bytes.substr(0, end), "tokenizer.json");
  const std::string_view text = end == std::string_view::npos ? kText : bytes.substr(end + 1);
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  static_cast<void>(tokenizer.decode(ids));
  for (const std::int32_t id : ids) {
    COTERIE_CHECK(id >= 0 && id < tokenizer.vocab_size(), "id ", id, " of ",
                  tokenizer.vocab_size());
  }
}

/// A tokenizer.json of a few tokens; the arguments are JSON.
std::string file_with(const std::string& normalizer, const std::string& pre_tokenizer,
                      const std::string& options) {
  return R"({"version":"1.0","added_tokens":[)"
         R"({"id":30,"content":"<s>","single_word":false,"lstrip":false,"rstrip":true,)"
         R"("normalized":false,"special":true},)"
         R"({"id":31,"content":"ca","single_word":true,"lstrip":true,"rstrip":false,)"
         R"("normalized":true,"special":false}],"normalizer":)" +
         normalizer + R"(,"pre_tokenizer":)" + pre_tokenizer +
         R"(,"post_processor":{"type":"TemplateProcessing","single":[)"
         R"({"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)"
         R"("special_tokens":{"<s>":{"id":"<s>","ids":[30],"tokens":["<s>"]}}},)"
         R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE",)" +
         options +
         R"("vocab":{"a":0,"c":1,"e":2,"f":3,"h":4,"i":5,"n":6,"s":7,"t":8,"T":9,"x":10,"1":11,)"
         R"("2":12,"3":13,"4":14,"\u0120":15,"'":16,"Ã":17,"©":18,"\u010a":19,"he":20,"The":21,)"
         R"("is":22,"12":23,"Ã©":24,"\u0120is":25,"\u0120\u0120":26},)"
         R"("merges":[["h","e"],["T","he"],["i","s"],["1","2"],["Ã","©"],"\u0120 is",)"
         R"(["\u0120","\u0120"]]}})";
}

std::vector<std::string> seeds() {
  const std::string text = std::string(1, '\0') + std::string(kText);
  const std::string byte_level =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  const std::string split =
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
      R"("(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*)"
      R"(|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},)"
      R"({"type":"Digits","individual_digits":true},)"
      R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false}]})";
  const std::string normal =
      R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Replace","pattern":)"
      R"({"String":"x"},"content":"yy"},{"type":"Prepend","prepend":" "}]})";
  return {
      file_with("null", byte_level, "") + text,
      file_with(R"({"type":"NFC"})", split, R"("ignore_merges":true,)") + text,
      file_with(normal, byte_level, R"("dropout":null,"unk_token":"x","fuse_unk":true,)") + text,
      file_with("null", R"({"type":"Whitespace"})", R"("unk_token":"x",)") + text,
      file_with("null",
                R"({"type":"Split","pattern":{"String":" "},"behavior":)"
                R"("MergedWithNext","invert":true})",
                "")};
}

}  // namespace

const Target kTokenizer = {"tokenizer", read, seeds};

}  // namespace coterie::fuzz
