// CUDA C++ as g++ understands it: qualifiers, indices, and the intrinsics that the kernels use, no more.
#pragma once
#include <sched.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime.h"

#define CUDA_ON_CPU 1
#define threadIdx (cuda_on_cpu::current->index)
#define blockIdx (cuda_on_cpu::block_index)
#define blockDim (cuda_on_cpu::block_size)
#define gridDim (cuda_on_cpu::grid_size)
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
// Blocks run one after another, so shared memory is static storage; the runtime fills this section with NaNs before each block.
#define __shared__ static __attribute__((section("cuda_shared")))
#define __syncthreads() cuda_on_cpu::barrier(__LINE__)

// A shuffle orders no memory in CUDA, so ThreadSanitizer must see none here: not instrumented.
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))

template <class T> UNSEEN void shuffle_exchange(cuda_on_cpu::Offer* lanes, unsigned present) {
    for (int lane = 0; lane < 32; lane++) {
        if (!(present >> lane & 1)) continue;
        T value;
        const int source = lanes[lane].argument;
        if (present >> source & 1)
            value = *static_cast<const T*>(lanes[source].value);
        else
            __builtin_memset(&value, 0xff, sizeof value);  // undefined in CUDA: a NaN
        *static_cast<T*>(lanes[lane].result) = value;
    }
}
template <class T> UNSEEN T shuffle(unsigned mask, T value, int source, const char* name) {
    T result;
    cuda_on_cpu::warp_exchange(mask, &value, &result, source, &shuffle_exchange<T>, name);
    return result;
}
template <class T> T __shfl_sync(unsigned mask, T value, int source) { return shuffle(mask, value, source & 31, "__shfl_sync"); }
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits) {
    return shuffle(mask, value, int(cuda_on_cpu::current->lane) ^ bits, "__shfl_xor_sync");
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned step) {
    const int lane = int(cuda_on_cpu::current->lane), source = lane - int(step);
    return shuffle(mask, value, source < 0 ? lane : source, "__shfl_up_sync");
}

// A lane that has ended votes 0.
UNSEEN inline void ballot_exchange(cuda_on_cpu::Offer* lanes, unsigned present) {
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if (present >> lane & 1) votes |= unsigned(*static_cast<const bool*>(lanes[lane].value)) << lane;
    for (int lane = 0; lane < 32; lane++)
        if (present >> lane & 1) *static_cast<unsigned*>(lanes[lane].result) = votes;
}
UNSEEN inline unsigned __ballot_sync(unsigned mask, bool vote) {
    unsigned result;
    cuda_on_cpu::warp_exchange(mask, &vote, &result, 0, &ballot_exchange, "__ballot_sync");
    return result;
}
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

// Real atomics, so that ThreadSanitizer knows them for such.
inline int atomicAdd(int* place, int value) { return __atomic_fetch_add(place, value, __ATOMIC_RELAXED); }
inline unsigned long long atomicAdd(unsigned long long* place, unsigned long long value) {
    return __atomic_fetch_add(place, value, __ATOMIC_RELAXED);
}

// Between processes, as between GPUs.
inline unsigned load_acquire(const unsigned* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline void store_release(unsigned* word, unsigned value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
inline void nap() { sched_yield(); }

template <class To, class From> To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
// Byte i of the result is one of eight, the first operand's then the second's, by hexadecimal digit i of the selector.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= unsigned(both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
    return result;
}
inline int __float_as_int(float x) { return same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
inline float half_bits_to_float(unsigned short bits) { return float(same_bits<_Float16>(bits)); }
inline unsigned short float_to_half_bits(float value) { return same_bits<unsigned short>(static_cast<_Float16>(value)); }

// ---- entry points for ctypes: arguments as an array of pointers to them, as the driver takes them

namespace cuda_on_cpu {
template <class... Parameters> struct Call {
    void (*kernel)(Parameters...);
    void** arguments;

    template <size_t... I> void with(std::index_sequence<I...>) { kernel(*static_cast<std::decay_t<Parameters>*>(arguments[I])...); }
    static void body(void* self) { static_cast<Call*>(self)->with(std::index_sequence_for<Parameters...>{}); }
};
template <class... Parameters> int run_kernel(void (*kernel)(Parameters...), const Launch& launch, void** arguments) {
    Call<Parameters...> call{kernel, arguments};
    return run(launch, &Call<Parameters...>::body, &call);
}
// One letter a parameter: p pointer, then the size of what it points to; i, u or f, then the number's size.
template <class T> std::pair<char, int> parameter_kind() {
    if constexpr (std::is_pointer_v<T>)
        return {'p', int(sizeof(std::remove_pointer_t<T>))};
    else
        return {std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u', int(sizeof(T))};
}
template <class... Parameters> void describe(void (*)(Parameters...), char* out) {
    (void)std::initializer_list<int>{(*out++ = parameter_kind<Parameters>().first, *out++ = char('0' + parameter_kind<Parameters>().second), 0)...};
    *out = 0;
}
}  // namespace cuda_on_cpu

#define EXPORT_KERNEL(name)                                                                                   \
    extern "C" int launch_##name(const cuda_on_cpu::Launch* launch, void** arguments) {                       \
        return cuda_on_cpu::run_kernel(&name, *launch, arguments);                                            \
    }                                                                                                         \
    extern "C" void describe_##name(char* out) { cuda_on_cpu::describe(&name, out); }
