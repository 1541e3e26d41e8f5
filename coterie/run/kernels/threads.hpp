// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace coterie::kernels {

/// A small pool of threads for loops inside one operation. Parts are bound to threads by number
/// alone (thread t runs the parts [t * n / size, (t + 1) * n / size)), so what each thread does
/// never depends on timing. Waiting workers spin for some microseconds, then sleep.
///
/// Calls from several threads take turns. A part must not use the pool that runs it (kInternal).
class Threads {
 public:
  static constexpr int kMost = 1024;

  /// `num_threads` >= 1 counts the calling thread; 1 makes no thread and runs all inline. kBadInput
  /// outside [1, kMost]; kUnsupported, saying how far it came, if the system refuses a thread.
  explicit Threads(int num_threads);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  Threads(Threads&&) = delete;
  Threads& operator=(Threads&&) = delete;

  [[nodiscard]] int size() const noexcept;

  /// Runs body(part) for each part in [0, num_parts) and returns when all are done. If parts throw,
  /// the exception of the lowest thread is thrown again here, after all threads have stopped.
  void run(std::int64_t num_parts, const std::function<void(std::int64_t)>& body);

  /// Runs body(begin, end) on at most size() neighbouring ranges that cover [0, count), none of
  /// them shorter than `grain` unless it is the only one.
  void run_ranges(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& body);

  /// The pool of size 1, shared by all; it may be used from any number of threads at a time.
  static Threads& single();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coterie::kernels
