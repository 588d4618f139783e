// Sleeping on a word until somebody changes it, and waiting for a moment before that.
#pragma once
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace helexa {

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Whether the word is seen by this process alone, or lies in memory that others map too.
enum class Seen { here = FUTEX_PRIVATE_FLAG, everywhere = 0 };

inline void sleep_while(std::atomic<uint32_t>& word, uint32_t value, Seen seen = Seen::here) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT | static_cast<int>(seen), value, nullptr, nullptr, 0);
}

inline void wake(std::atomic<uint32_t>& word, Seen seen = Seen::here) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE | static_cast<int>(seen), INT_MAX, nullptr, nullptr, 0);
}

}  // namespace helexa
