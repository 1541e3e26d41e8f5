// SPDX-License-Identifier: Apache-2.0
#include "python/bindings/bindings.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Coterie's C++ core; use it through the package coterie.";
  module.attr("version") = COTERIE_VERSION;
  coterie::python::bind_errors(module);
  coterie::python::bind_routing(module);
  coterie::python::bind_placement(module);
  coterie::python::bind_schedule(module);
  coterie::python::bind_report(module);
  coterie::python::bind_models(module);
  coterie::python::bind_nn(module);
}
