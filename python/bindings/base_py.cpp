// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"
#include "python/bindings/bindings.hpp"

namespace coterie::python {
namespace {

/// Lives as long as the process: translators may run while the interpreter goes down.
py::object& error_type() {
  static auto* type = new py::object();
  return *type;
}

}  // namespace

void bind_errors(py::module_& module) {
  // The class is Python's (coterie/_error.py): an exception with members is simplest there.
  module.def("set_error_type", [](py::object type) { error_type() = std::move(type); });
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) {
        std::rethrow_exception(thrown);
      }
    } catch (const Error& error) {
      if (!error_type()) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return;
      }
      const py::object instance =
          error_type()(name_of(error.code()), exit_code_of(error.code()), error.what());
      PyErr_SetObject(error_type().ptr(), instance.ptr());
    }
  });
}

py::object to_python(const Json& json) {
  switch (json.type()) {
    case Json::value_t::object: {
      py::dict dict;
      for (const auto& [key, value] : json.items()) {
        dict[py::str(key)] = to_python(value);
      }
      return dict;
    }
    case Json::value_t::array: {
      py::list list;
      for (const Json& value : json) {
        list.append(to_python(value));
      }
      return list;
    }
    case Json::value_t::string: return py::str(json.get<std::string>());
    case Json::value_t::boolean: return py::bool_(json.get<bool>());
    case Json::value_t::number_integer: return py::int_(json.get<std::int64_t>());
    case Json::value_t::number_unsigned: return py::int_(json.get<std::uint64_t>());
    case Json::value_t::number_float: return py::float_(json.get<double>());
    default: return py::none();
  }
}

void PythonProgress::begin(std::string_view what, std::int64_t total) {
  const py::gil_scoped_acquire gil;
  if (!listener_.is_none()) {
    listener_.attr("begin")(std::string(what), total);
  }
}

void PythonProgress::update(std::int64_t done) {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {  // Ctrl-C ends long work
    throw py::error_already_set();
  }
  if (!listener_.is_none()) {
    listener_.attr("update")(done);
  }
}

void PythonProgress::end() {
  const py::gil_scoped_acquire gil;
  if (!listener_.is_none()) {
    listener_.attr("end")();
  }
}

void PythonProgress::warn(std::string_view message) {
  const py::gil_scoped_acquire gil;
  if (listener_.is_none()) {
    py::module_::import("warnings").attr("warn")(std::string(message));
  } else {
    listener_.attr("warn")(std::string(message));
  }
}

}  // namespace coterie::python
