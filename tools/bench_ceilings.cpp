// What this machine can do at most: bytes read a second from memory, and
// float32 fused multiply-adds, on the given threads. Built by bench_ops.py with
// -O3 -march=native; prints one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

double seconds_of(int threads, const auto &work) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; thread++)
    others.emplace_back([&, thread] { work(thread); });
  work(0);
  for (std::thread &other : others)
    other.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

volatile uint64_t sink;

double read_gb_per_s(int threads) {
  std::vector<uint64_t> memory((size_t{256} << 20) / 8, 1);
  const size_t share = memory.size() / static_cast<size_t>(threads);
  double best = 1e9;
  for (int repeat = 0; repeat < 8; repeat++)
    best = std::min(best, seconds_of(threads, [&](int thread) {
                      uint64_t sums[32] = {};
                      const uint64_t *from =
                          memory.data() + share * static_cast<size_t>(thread);
                      for (size_t i = 0; i + 32 <= share; i += 32)
                        for (size_t lane = 0; lane < 32; lane++)
                          sums[lane] += from[i + lane];
                      for (uint64_t sum : sums)
                        sink = sum;
                    }));
  return static_cast<double>(share * static_cast<size_t>(threads) * 8) / best /
         1e9;
}

double fma_gflop_per_s(int threads) {
  constexpr int kRounds = 2000000, kChains = 12, kLanes = 16;
  double best = 1e9;
  for (int repeat = 0; repeat < 4; repeat++)
    best = std::min(best, seconds_of(threads, [&](int) {
                      using Lanes =
                          float __attribute__((vector_size(4 * kLanes)));
                      Lanes sums[kChains] = {};
                      const Lanes a = sums[0] + 0.999f, b = sums[0] + 1e-6f;
                      for (int round = 0; round < kRounds; round++)
                        for (Lanes &sum : sums)
                          sum = sum * a + b;
                      float total = 0;
                      for (const Lanes &sum : sums)
                        total += sum[0];
                      sink = static_cast<uint64_t>(total);
                    }));
  return 2.0 * kRounds * kChains * kLanes * threads / best / 1e9;
}

} // namespace

int main(int count, char **arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1;
  std::printf("{\"read_gb_per_s\": %.1f, \"fma_gflop_per_s\": %.1f}\n",
              read_gb_per_s(threads), fma_gflop_per_s(threads));
}
