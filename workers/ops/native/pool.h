// A pool of threads that share one job's chunks through a work queue. The caller works too, and waits for chunks, not for
// threads: a thread that the system has put aside holds nobody up unless it holds a chunk.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace helexa {

class Pool {
public:
    // `threads` counts the caller. A thread without work spins `spins` rounds, then sleeps until woken.
    Pool(int threads, int spins);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(helpers_.size()) + 1; }

    static constexpr int kMaxChunks = 65535;

    // Calls work(chunk, thread) for each chunk in 0 .. chunks - 1 (at most kMaxChunks); returns when all are done.
    template <class Work> void run(int chunks, const Work& work) {
        if (chunks <= 1 || helpers_.empty()) {
            for (int chunk = 0; chunk < chunks; chunk++) work(chunk, 0);
            return;
        }
        dispatch(
            chunks, [](const void* context, int chunk, int thread) { (*static_cast<const Work*>(context))(chunk, thread); },
            &work);
    }

private:
    using Call = void (*)(const void* context, int chunk, int thread);

    void dispatch(int chunks, Call call, const void* context);
    void take_chunks(uint32_t job, int thread);
    void help(int thread);
    uint32_t wait_for_job(uint32_t last);

    const int spins_;
    std::vector<std::thread> helpers_;

    // What to call. Written before `ticket_` names the job, and never while a chunk of it is left.
    std::atomic<Call> call_{nullptr};
    std::atomic<const void*> context_{nullptr};

    alignas(64) std::atomic<uint64_t> ticket_{0};  // job number << 32 | its chunks << 16 | next chunk
    alignas(64) std::atomic<uint32_t> done_{0};    // chunks of this job that are finished
    std::atomic<uint32_t> caller_sleeps_{0};
    alignas(64) std::atomic<uint32_t> job_{0};  // what sleeping threads watch
    std::atomic<uint32_t> sleepers_{0};
    std::atomic<bool> stop_{false};
};

}  // namespace helexa
