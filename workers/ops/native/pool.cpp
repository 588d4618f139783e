#include "pool.h"

#include "float_mode.h"
#include "futex.h"

namespace helexa {

Pool::Pool(int threads, int spins) : spins_(spins) {
    for (int thread = 1; thread < threads; thread++) helpers_.emplace_back([this, thread] { help(thread); });
}

Pool::~Pool() {
    stop_.store(true);
    job_.fetch_add(1);
    wake(job_);
    for (std::thread& helper : helpers_) helper.join();
}

void Pool::dispatch(int chunks, Call call, const void* context) {
    call_.store(call, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
    ticket_.store(static_cast<uint64_t>(job) << 32 | static_cast<uint64_t>(chunks) << 16, std::memory_order_release);
    job_.store(job);
    if (sleepers_.load() > 0) wake(job_);
    take_chunks(job, 0);
    for (int spin = 0; spin < spins_; spin++) {
        if (done_.load(std::memory_order_acquire) == static_cast<uint32_t>(chunks)) return;
        relax();
    }
    caller_sleeps_.store(1);
    for (uint32_t done = done_.load(); done != static_cast<uint32_t>(chunks); done = done_.load()) sleep_while(done_, done);
    caller_sleeps_.store(0);
}

// A chunk is taken by moving the ticket on. That succeeds only while a chunk of this job is left, and then what was read
// before is this job's.
void Pool::take_chunks(uint32_t job, int thread) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (ticket >> 32 == job) {
        const Call call = call_.load(std::memory_order_relaxed);
        const void* context = context_.load(std::memory_order_relaxed);
        const uint32_t chunks = ticket >> 16 & 0xffff, chunk = ticket & 0xffff;
        if (chunk >= chunks) return;
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        call(context, static_cast<int>(chunk), thread);
        if (done_.fetch_add(1) + 1 == chunks && caller_sleeps_.load() != 0) wake(done_);
        ticket = ticket_.load(std::memory_order_acquire);
    }
}

uint32_t Pool::wait_for_job(uint32_t last) {
    for (int spin = 0; spin < spins_; spin++) {
        const uint32_t job = job_.load(std::memory_order_acquire);
        if (job != last) return job;
        relax();
    }
    sleepers_.fetch_add(1);
    while (job_.load() == last) sleep_while(job_, last);
    sleepers_.fetch_sub(1);
    return job_.load();
}

void Pool::help(int thread) {
    const FloatMode mode;
    uint32_t job = 0;
    for (;;) {
        job = wait_for_job(job);
        if (stop_.load()) return;
        take_chunks(job, thread);
    }
}

}  // namespace helexa
