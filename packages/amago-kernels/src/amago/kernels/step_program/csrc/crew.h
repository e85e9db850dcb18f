// Threads that share a piece of work with the thread that asks for it, and let it do other things meanwhile.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace amago {

// How often this process has come out of a fork, which copies no threads but the one that asks for it.
inline std::atomic<int> forks{0};
inline const bool kForksAreCounted = pthread_atfork(nullptr, nullptr, [] { ++forks; }) == 0;

inline double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Lets another thread of this core go first: for a few nanoseconds, and every so often for as long as it wants.
inline void stand_by(int64_t turn) {
    if (turn % 64 == 63) sched_yield();
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// What is shared. Every part of it is taken by whoever comes first, so no helper is waited for before it has begun.
class Work {
public:
    virtual ~Work() = default;
    // Does parts until none is left that nobody has taken; `worker` is 0 for the caller, and counts helpers from 1.
    virtual void share(int worker) = 0;
};

// One thread at a time may use it. Helpers are made when they are first wanted. After a piece of work they stay awake
// for a while, as waking takes as long as a small piece of work.
class Crew {
public:
    Crew() : here_(new Place) {}
    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;
    ~Crew() {
        if (forked()) return;  // without the threads, their place cannot be taken apart
        {
            const std::lock_guard closed(here_->door);
            here_->over = true;
        }
        here_->bell.notify_all();
        for (std::thread& thread : here_->threads) thread.join();
        delete here_;
    }

    // Helpers 1 to `helpers` take part in the work from the next call on.
    void begin(Work& work, int helpers) {
        if (forked()) here_ = new Place, forks_ = forks;  // the old one stays behind
        here_->helpers = helpers;
        here_->work = &work;
        try {
            for (int made = here_->threads.size(); made < std::min(helpers, most_); ++made)
                here_->threads.emplace_back(&Place::help, here_, made + 1);
        } catch (const std::system_error&) {  // no more are to be had: those that are there do it, or the caller alone
            most_ = here_->threads.size();
        }
    }

    // There is more to take than before.
    void call() {
        if (forked()) return;
        ++here_->calls;
        if (here_->asleep > 0) {
            { const std::lock_guard closed(here_->door); }
            here_->bell.notify_all();
        }
    }

    // Once there is nothing left to take: waits for the helpers to finish what they have taken. False if they are
    // gone, and what they had taken was not done.
    bool end() {
        if (forked()) return false;
        Place& here = *here_;
        here.work = nullptr;
        for (int64_t turn = 0; here.inside > 0; ++turn) {
            stand_by(turn);
            if (turn < kPatience) continue;
            // A helper that was put off its core may come back on this one
            std::unique_lock closed(here.door);
            here.awaited = true;
            here.gone.wait(closed, [&] { return here.inside == 0; });
            here.awaited = false;
        }
        return true;
    }

private:
    static constexpr int64_t kPatience = 2048;  // turns, about a tenth of a millisecond

    struct Place {
        void help(int me) {
            for (int64_t heard = 0; await_call(heard);) {
                // Whoever ends the work first hides it and then waits until nobody is inside, so it is there as long
                // as it is found from inside.
                ++inside;
                if (Work* found = work; found && me <= helpers) found->share(me);
                if (--inside == 0 && awaited) {
                    { const std::lock_guard closed(door); }
                    gone.notify_one();
                }
            }
        }
        // Whether there was another call than the last one that was heard; false at the end.
        bool await_call(int64_t& heard) {
            const double until = seconds_now() + kAwake;
            for (int64_t turn = 0; calls == heard && !over; ++turn) {
                stand_by(turn);
                if (turn % 64 == 63 && seconds_now() > until) {
                    std::unique_lock closed(door);
                    ++asleep;
                    bell.wait(closed, [&] { return calls != heard || over; });
                    --asleep;
                }
            }
            heard = calls;
            return !over;
        }

        static constexpr double kAwake = 1e-3;  // seconds
        std::atomic<Work*> work{nullptr};
        std::atomic<int> helpers{0};
        std::atomic<int64_t> calls{0};
        std::atomic<int> inside{0}, asleep{0};
        std::atomic<bool> over{false}, awaited{false};
        std::mutex door;
        std::condition_variable bell, gone;
        std::vector<std::thread> threads;
    };

    bool forked() const { return forks != forks_; }

    Place* here_;
    int most_ = std::numeric_limits<int>::max();
    int forks_ = forks;
};

}  // namespace amago
