// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <ios>
#include <string>
#include <string_view>

#include "cli/commands.hpp"
#include "cli/whole_numbers.hpp"
#include "coterie/base/error.hpp"

namespace coterie::cli {
namespace {

/// The commands that this build has, in the order in which a newcomer meets them.
constexpr AddCommand kCommands[] = {
#define COTERIE_COMMAND(name) add_##name,
#include "cli/command_table.inc"
#undef COTERIE_COMMAND
};

constexpr const char* kFooter =
    "Examples:\n"
    "  coterie demo                       the whole job on a small bundled model\n"
    "  coterie trace --model DIR --text FILE --out trace.bin\n"
    "  coterie place --trace trace.bin --devices 8 --out placement.json\n"
    "  coterie permute --model DIR --placement placement.json --out DIR2\n"
    "\n"
    "coterie COMMAND --help tells more. Exit codes: 0 done, 2 wrong input, 3 no solution exists,\n"
    "4 another rank failed, 1 a fault of ours.";

void print_error(ErrorCode code, const std::string& message) {
  const Json document = {{"error", {{"code", name_of(code)}, {"message", message}}}};
  std::fputs(format_json(document).c_str(), stdout);
}

/// For errors that end the reading of the flags before --json was seen.
bool asks_for_json(int argc, char** argv) {
  return std::any_of(argv, argv + argc,
                     [](const char* word) { return std::string_view(word) == "--json"; });
}

int report_error(const Console& console, ErrorCode code, const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  if (console.json()) {
    print_error(code, message);
  }
  return exit_code_of(code);
}

/// Complains about a first word that is no command, with those that are.
void check_command_name(const CLI::App& app, int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  std::string names;
  bool is_known = word.empty() || word.front() == '-';
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    is_known |= command->get_name() == word;
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  if (is_known) {
    return;
  }
  fail(ErrorCode::kBadInput, "there is no command \"", word, "\"; there are ", names);
}

int run(int argc, char** argv) {
  Console console;
  CLI::App app(
      "Coterie places the experts of mixture-of-experts models so that tokens travel less.",
      "coterie");
  app.set_version_flag("--version", COTERIE_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  for (const AddCommand add : kCommands) {
    add(app, console);
  }
  check_whole_numbers(app);
  try {
    console.set_json(asks_for_json(argc, argv));
    check_command_name(app, argc, argv);
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    // --help and --version end here too, with exit code 0.
    if (app.exit(error) == 0) {
      return 0;
    }
    if (asks_for_json(argc, argv)) {
      print_error(ErrorCode::kBadInput, error.what());
    }
    return exit_code_of(ErrorCode::kBadInput);
  } catch (const Error& error) {
    console.end();
    return report_error(console, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report_error(console, ErrorCode::kIo, "out of memory");
  } catch (const std::ios_base::failure& error) {
    return report_error(console, ErrorCode::kIo, error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return report_error(console, ErrorCode::kIo, error.what());
  } catch (const std::exception& error) {
    return report_error(console, ErrorCode::kInternal, error.what());
  }
}

}  // namespace

void add_shared_flags(CLI::App& command, Console& console) {
  command.add_flag_callback(
      "--json", [&console] { console.set_json(true); },
      "print one JSON document on standard output");
  command.add_flag_callback(
      "-q,--quiet", [&console] { console.set_quiet(true); }, "no progress on standard error");
}

}  // namespace coterie::cli

int main(int argc, char** argv) {
  return coterie::cli::run(argc, argv);
}
