// SPDX-License-Identifier: Apache-2.0
// Exists so that the precompiled ATen header has a target of its own.
