// Runs a grid one block after another, a block's threads as fibers of one system thread. Never instrumented itself.
//
// A thread runs until it waits. A barrier lets its block go on once all threads that have not ended are there; that some ended, or wait at
// another line, is an error here, though not always in CUDA. Blocks start with NaNs in shared memory.
#include "runtime.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "context.h"

extern char __start_cuda_shared[] __attribute__((weak));
extern char __stop_cuda_shared[] __attribute__((weak));

namespace cuda_on_cpu {
namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr unsigned kMostThreads = 1024;
enum State { kReady, kAtBarrier, kInWarp, kEnded };
enum Schedule { kForward, kReverse, kRandom };

struct Fiber : Thread {
    Context context;
    char* stack;
    State state;
};
struct Warp {
    unsigned running, waiting;
    Offer offers[32];
    Exchange exchanges[32];
    unsigned masks[32];
    const char* names[32];
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
Context scheduler;
Fiber* running;
unsigned unfinished, arrived;
int barrier_line;
std::string error;
void (*kernel_body)(void*);
void* kernel_argument;
uint64_t random_state;
// Their addresses name what ThreadSanitizer is told of. Barriers take turns at two: a thread that is slow to leave one must not see what
// others did on their way to the next.
char barrier_order[2], block_order;
unsigned barriers_opened;

unsigned random_number() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return unsigned(random_state >> 32);
}

void set_error(const std::string& message) {
    if (!error.empty()) return;
    char where[96];
    snprintf(where, sizeof where, " [block (%u, %u), thread %u]", block_index.x, block_index.y, running->number);
    error = message + where;
}

void wait() { running->context.switch_to(scheduler); }

void open_barrier_if_all_are_there() {
    if (arrived == 0 || arrived < unfinished) return;
    if (unfinished < fibers.size())
        set_error("__syncthreads at line " + std::to_string(barrier_line) + ": some threads of the block have ended");
    arrived = 0;
    barrier_line = 0;
    barriers_opened++;
    for (Fiber& fiber : fibers)
        if (fiber.state == kAtBarrier) fiber.state = kReady;
}

// Completes each group of lanes that have all arrived.
void complete_exchanges(Warp& warp) {
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(warp.waiting >> lane & 1)) continue;
        const unsigned group = warp.masks[lane] & warp.running;
        if ((warp.waiting & group) != group) continue;
        for (unsigned other = 0; other < 32; other++)
            if ((group >> other & 1) && (warp.masks[other] != warp.masks[lane] || warp.exchanges[other] != warp.exchanges[lane]))
                return set_error(std::string(warp.names[lane]) + " meets another warp collective, or another mask");
        warp.exchanges[lane](warp.offers, group);
        warp.waiting &= ~group;
        Fiber* first = &fibers[size_t(&warp - warps.data()) * 32];
        for (unsigned other = 0; other < 32; other++)
            if (group >> other & 1) first[other].state = kReady;
    }
}

void thread_entry() {
    acquire(&block_order);
    kernel_body(kernel_argument);
    release(&block_order);
    running->state = kEnded;
    unfinished--;
    Warp& warp = warps[running->warp];
    warp.running &= ~(1u << running->lane);
    complete_exchanges(warp);
    open_barrier_if_all_are_there();
    wait();
    abort();
}

void start_block() {
    unfinished = unsigned(fibers.size());
    arrived = 0;
    barrier_line = 0;
    for (char* p = __start_cuda_shared; p < __stop_cuda_shared; p++) *static_cast<volatile char*>(p) = char(0xff);
    for (Warp& warp : warps) warp.running = warp.waiting = 0;
    for (Fiber& fiber : fibers) {
        fiber.state = kReady;
        fiber.context.prepare(fiber.stack, kStackBytes, thread_entry);
        warps[fiber.warp].running |= 1u << fiber.lane;
    }
}

void run_block(int schedule) {
    start_block();
    std::vector<Fiber*> order;
    for (Fiber& fiber : fibers) order.push_back(&fiber);
    if (schedule == kReverse) order.assign(fibers.size(), nullptr);
    if (schedule == kReverse)
        for (size_t i = 0; i < fibers.size(); i++) order[i] = &fibers[fibers.size() - 1 - i];
    release(&block_order);
    while (unfinished && error.empty()) {
        if (schedule == kRandom)
            for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random_number() % i]);
        bool any = false;
        for (Fiber* fiber : order) {
            if (fiber->state != kReady) continue;
            any = true;
            running = fiber;
            current = fiber;
            scheduler.switch_to(fiber->context);
            if (!error.empty()) break;
        }
        if (!any) set_error(std::to_string(arrived) + " threads wait at a barrier and the rest in warp collectives: none can go on");
    }
    acquire(&block_order);
}

void make_threads(const Index& block) {
    static char* stacks = static_cast<char*>(mmap(nullptr, kStackBytes * kMostThreads, PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    const unsigned count = block.x * block.y * block.z;
    fibers.assign(count, Fiber{});
    warps.assign((count + 31) / 32, Warp{});
    for (unsigned i = 0; i < count; i++) {
        Fiber& fiber = fibers[i];
        fiber.index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
        fiber.number = i;
        fiber.warp = i / 32;
        fiber.lane = i % 32;
        fiber.stack = stacks + kStackBytes * i;
#ifdef WATCHED_BY_TSAN
        fiber.context.fiber = __tsan_create_fiber(0);
#endif
    }
#ifdef WATCHED_BY_TSAN
    scheduler.fiber = __tsan_get_current_fiber();
#endif
}

}  // namespace

Thread* current;
Index block_index, block_size, grid_size;

void fail(const char* message) {
    set_error(message);
    running->state = kEnded;
    for (;;) wait();
}

void barrier(int line) {
    char* order = &barrier_order[barriers_opened % 2];
    release(order);
    if (arrived && barrier_line != line)
        fail(("__syncthreads at line " + std::to_string(line) + " meets the one at line " + std::to_string(barrier_line)).c_str());
    barrier_line = line;
    arrived++;
    running->state = kAtBarrier;
    open_barrier_if_all_are_there();
    if (running->state != kReady) wait();
    acquire(order);
}

void warp_exchange(unsigned mask, const void* value, void* result, int argument, Exchange exchange, const char* name) {
    Warp& warp = warps[running->warp];
    const unsigned lane = running->lane;
    if (!(mask >> lane & 1)) fail("a warp collective is called by a lane that its mask does not name");
    warp.offers[lane] = {value, result, argument};
    warp.exchanges[lane] = exchange;
    warp.masks[lane] = mask;
    warp.names[lane] = name;
    warp.waiting |= 1u << lane;
    running->state = kInWarp;
    complete_exchanges(warp);
    if (running->state != kReady) wait();
}

int run(const Launch& launch, void (*body)(void*), void* argument) {
    error.clear();
    const uint64_t blocks = uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    const uint64_t threads = uint64_t(launch.block.x) * launch.block.y * launch.block.z;
    if (!threads || threads > kMostThreads || !blocks || launch.grid.y > 65535 || launch.grid.z > 65535 || launch.grid.x > 0x7fffffffu) {
        error = "a grid or block size that CUDA refuses";
        return 1;
    }
    random_state = launch.seed * 2654435761u + 88172645463325252ull;
    kernel_body = body;
    kernel_argument = argument;
    block_size = launch.block;
    grid_size = launch.grid;
    make_threads(launch.block);
    const uint64_t first = launch.schedule == kRandom ? random_number() % blocks : 0;
    for (uint64_t i = 0; i < blocks && error.empty(); i++) {
        const uint64_t block = launch.schedule == kReverse ? blocks - 1 - i : (first + i) % blocks;
        block_index = {unsigned(block % grid_size.x), unsigned(block / grid_size.x % grid_size.y),
                       unsigned(block / grid_size.x / grid_size.y)};
        run_block(launch.schedule);
    }
#ifdef WATCHED_BY_TSAN
    for (Fiber& fiber : fibers) __tsan_destroy_fiber(fiber.context.fiber);
#endif
    return !error.empty();
}

extern "C" const char* cuda_on_cpu_error() { return error.c_str(); }

}  // namespace cuda_on_cpu
