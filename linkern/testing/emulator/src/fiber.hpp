// A fiber: a stack that can be entered and left, and that sanitizers know.
//
// To ThreadSanitizer each fiber is a thread. Switching orders nothing; only calls of
// `acquire` and `release` do.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>

#if !defined(__x86_64__) || defined(EMULATOR_UCONTEXT)
#include <ucontext.h>
#define EMULATOR_UCONTEXT 1
#endif

#ifdef EMULATOR_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#endif
#ifdef EMULATOR_ASAN
extern "C" {
void __sanitizer_start_switch_fiber(void**, const void*, std::size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, std::size_t*);
void __asan_poison_memory_region(const volatile void*, std::size_t);
void __asan_unpoison_memory_region(const volatile void*, std::size_t);
}
#endif

namespace emulator {

inline void acquire([[maybe_unused]] void* order) {
#ifdef EMULATOR_TSAN
  __tsan_acquire(order);
#endif
}
inline void release([[maybe_unused]] void* order) {
#ifdef EMULATOR_TSAN
  __tsan_release(order);
#endif
}

// Accesses of poisoned memory are reported.
inline void poison([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#ifdef EMULATOR_ASAN
  __asan_poison_memory_region(memory, bytes);
#endif
}
inline void unpoison([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#ifdef EMULATOR_ASAN
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

#ifndef EMULATOR_UCONTEXT
// Saves callee-saved registers on the stack and switches to another stack.
extern "C" void emulator_switch(void** from, void* to);
#endif

class Fiber {
 public:
  static constexpr std::size_t kStack = 256 << 10;

  Fiber() {
    // Not from malloc, for which ThreadSanitizer would record each byte.
    constexpr int kHow = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, kHow, -1, 0);
    if (stack == MAP_FAILED) std::abort();
    stack_ = static_cast<char*>(stack);
#ifdef EMULATOR_TSAN
    tsan_ = __tsan_create_fiber(0);
#endif
  }
  ~Fiber() {
#ifdef EMULATOR_TSAN
    __tsan_destroy_fiber(tsan_);
#endif
    munmap(stack_, kStack);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Lets the next `enter` start `main`, which must not return.
  void begin(void (*main)()) {
#ifdef EMULATOR_UCONTEXT
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_;
    own_.uc_stack.ss_size = kStack;
    own_.uc_link = nullptr;
    makecontext(&own_, main, 0);
#else
    auto top = reinterpret_cast<std::uintptr_t>(stack_ + kStack) & ~std::uintptr_t(15);
    void** place = reinterpret_cast<void**>(top);
    *--place = nullptr;  // return address of main
    *--place = reinterpret_cast<void*>(main);
    for (int i = 0; i < 6; i++) *--place = nullptr;  // registers
    own_ = place;
#endif
    fake_stack_ = nullptr;
  }

  // Called by the scheduler: runs until the fiber leaves.
  void enter() {
#ifdef EMULATOR_TSAN
    outer_tsan_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_, 1);
#endif
#ifdef EMULATOR_ASAN
    __sanitizer_start_switch_fiber(&outer_fake_, stack_, kStack);
#endif
#ifdef EMULATOR_UCONTEXT
    swapcontext(&outer_, &own_);
#else
    emulator_switch(&outer_, own_);
#endif
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(outer_fake_, nullptr, nullptr);
#endif
  }

  // Called by the fiber when it starts or resumes.
  void entered() {
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(fake_stack_, &outer_stack_, &outer_size_);
#endif
  }

  // Called by the fiber: back to the scheduler, for good if it is done.
  void leave([[maybe_unused]] bool done) {
#ifdef EMULATOR_TSAN
    __tsan_switch_to_fiber(outer_tsan_, 1);
#endif
#ifdef EMULATOR_ASAN
    __sanitizer_start_switch_fiber(done ? nullptr : &fake_stack_, outer_stack_, outer_size_);
#endif
#ifdef EMULATOR_UCONTEXT
    swapcontext(&own_, &outer_);
#else
    emulator_switch(&own_, outer_);
#endif
    entered();
  }

 private:
  char* stack_ = nullptr;
#ifdef EMULATOR_UCONTEXT
  ucontext_t own_, outer_;
#else
  void *own_ = nullptr, *outer_ = nullptr;
#endif
  [[maybe_unused]] void *tsan_ = nullptr, *outer_tsan_ = nullptr;
  [[maybe_unused]] void *fake_stack_ = nullptr, *outer_fake_ = nullptr;
  [[maybe_unused]] const void* outer_stack_ = nullptr;
  [[maybe_unused]] std::size_t outer_size_ = 0;
};

}  // namespace emulator
