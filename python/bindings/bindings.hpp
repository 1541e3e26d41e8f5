// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "coterie/base/json.hpp"
#include "coterie/base/log.hpp"

/// The parts of the module `coterie._core`: one function a room, called once by module.cpp.
namespace coterie::python {

namespace py = pybind11;

void bind_errors(py::module_& module);
void bind_routing(py::module_& module);
void bind_placement(py::module_& module);
void bind_schedule(py::module_& module);
void bind_report(py::module_& module);
void bind_models(py::module_& module);
void bind_nn(py::module_& module);

/// JSON as Python's dict, list, str, int, float, bool, None.
py::object to_python(const Json& json);

/// Tells a Python object with begin(what, total), update(done), end() and warn(text) of progress,
/// or nobody if it is None. Calls take the GIL by themselves.
class PythonProgress final : public Progress {
 public:
  explicit PythonProgress(py::object listener) : listener_(std::move(listener)) {}
  void begin(std::string_view what, std::int64_t total) override;
  void update(std::int64_t done) override;
  void end() override;
  void warn(std::string_view message) override;

 private:
  py::object listener_;
};

}  // namespace coterie::python
