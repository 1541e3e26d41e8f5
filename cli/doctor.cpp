// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.hpp"
#include "cli/doctor_checks.hpp"
#include "coterie/base/error.hpp"

namespace coterie::cli {
namespace {

constexpr const char* kFooter =
    "Each line is ok, warn (it will work, but badly) or fail (something will not work), with what\n"
    "to do about it. Exit code 2 if a line says fail.\n"
    "\n"
    "Examples:\n"
    "  coterie doctor\n"
    "  coterie doctor --json";

void run_doctor(Console& console) {
  Json checks = Json::array();
  std::string text;
  bool failed = false;
  for (const DoctorCheck& check : examine_machine()) {
    checks.push_back({{"name", check.name},
                      {"state", name_of(check.state)},
                      {"found", check.found},
                      {"hint", check.hint}});
    std::string line = name_of(check.state);
    line.resize(6, ' ');
    line += check.name;
    line.resize(18, ' ');
    text += line + check.found + "\n" +
            (check.hint.empty() ? "" : std::string(18, ' ') + "-> " + check.hint + "\n");
    failed = failed || check.state == DoctorCheck::State::kFail;
  }
  console.print(text);
  console.emit({{"healthy", !failed}, {"checks", std::move(checks)}});
  if (failed) {
    throw CLI::RuntimeError(exit_code_of(ErrorCode::kBadInput));
  }
}

}  // namespace

void add_doctor(CLI::App& app, Console& console) {
  CLI::App* command =
      app.add_subcommand("doctor", "check that this machine has what coterie needs");
  command->footer(kFooter);
  add_shared_flags(*command, console);
  command->callback([&console] { run_doctor(console); });
}

}  // namespace coterie::cli
