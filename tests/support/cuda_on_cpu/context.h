// Switching between fibers: a few instructions on x86-64, ucontext elsewhere; and telling ThreadSanitizer, where it watches.
#pragma once
#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#ifdef WATCHED_BY_TSAN
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#endif

namespace cuda_on_cpu {

#ifdef WATCHED_BY_TSAN
inline void acquire(void* what) { __tsan_acquire(what); }
inline void release(void* what) { __tsan_release(what); }
#else
inline void acquire(void*) {}
inline void release(void*) {}
#endif

#if defined(__x86_64__)
extern "C" void cuda_on_cpu_switch(void** save, void* load);
asm(R"(
.text
.globl cuda_on_cpu_switch
.hidden cuda_on_cpu_switch
.type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size cuda_on_cpu_switch, .-cuda_on_cpu_switch
)");
#endif

class Context {
public:
    // Starts at `entry` on the stack when it is first switched to.
    void prepare(char* stack, size_t size, void (*entry)()) {
#if defined(__x86_64__)
        void** top = reinterpret_cast<void**>(stack + size);
        *--top = nullptr;  // where entry would return to: it does not
        *--top = reinterpret_cast<void*>(entry);
        for (int i = 0; i < 6; i++) *--top = nullptr;  // the registers that the switch pops
        stack_ = top;
#else
        getcontext(&context_);
        context_.uc_stack.ss_sp = stack;
        context_.uc_stack.ss_size = size;
        context_.uc_link = nullptr;
        makecontext(&context_, entry, 0);
#endif
    }

    void switch_to(Context& next) {
#ifdef WATCHED_BY_TSAN
        __tsan_switch_to_fiber(next.fiber, 1);  // 1: a switch orders no memory; only barriers do
#endif
#if defined(__x86_64__)
        cuda_on_cpu_switch(&stack_, next.stack_);
#else
        swapcontext(&context_, &next.context_);
#endif
    }

#ifdef WATCHED_BY_TSAN
    void* fiber = nullptr;
#endif

private:
#if defined(__x86_64__)
    void* stack_ = nullptr;
#else
    ucontext_t context_;
#endif
};

}  // namespace cuda_on_cpu
