// Many short jobs of every size on pools of 2, 3 and 5 threads: each chunk runs once. Built with a thread sanitizer by
// test_native_pool.py.
#include <cstdio>
#include <vector>

#include "pool.h"

int main() {
    for (int threads : {2, 3, 5}) {
        helexa::Pool pool(threads, 50);
        std::vector<long> seen(64, 0);
        long expected = 0, sum = 0;
        for (int job = 0; job < 2000; job++) {
            const int chunks = 1 + job % 37;
            pool.run(chunks, [&](int chunk, int thread) { seen[static_cast<size_t>(chunk)] += thread < threads ? chunk + 1 : 1000; });
            expected += chunks * (chunks + 1) / 2;
        }
        for (long count : seen) sum += count;
        if (sum != expected) return std::printf("%d threads: %ld, not %ld\n", threads, sum, expected), 1;
    }
}
