// Whether to share the rows of a step out among threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace amago {

// The time between the beginnings of steps, averaged; a pause of the whole loop does not count for more than ten times
// the average.
class Average {
public:
    void clear() { count_ = 0; }
    void add(double seconds) {
        if (++count_ <= kIgnored) return;  // threads wake up, caches fill
        const int64_t known = count_ - kIgnored;
        mean_ = known == 1 ? seconds : mean_ + (std::min(seconds, 10 * mean_) - mean_) / std::min<int64_t>(known, 32);
    }
    double mean() const { return mean_; }
    int64_t count() const { return count_; }

private:
    static constexpr int64_t kIgnored = 4;
    int64_t count_ = 0;
    double mean_ = 0;
};

// A helper makes a step shorter, but it is slow to come where another process wants its core, and while it waits for
// the next step it keeps that core from the environments. So both ways are tried, and the whole loop around the steps
// is timed, not the steps alone. Both give the same bits.
class Team {
public:
    // At the beginning of a step: whether to do it together.
    bool together(double now) {
        if (began_ > 0) note(now - began_);
        began_ = now;
        return together_;
    }

private:
    void note(double seconds) {
        (together_ ? shared_ : alone_).add(seconds);
        if (!together_) {
            if (alone_.count() >= pause_) change(true);
        } else if (shared_.count() >= kTrial || hopeless()) {
            const bool worth_it = shared_.mean() < 0.98 * alone_.mean();
            pause_ = worth_it ? kTrial : std::min<int64_t>(4 * pause_, 1 << 16);
            if (!worth_it || shared_.count() >= kTerm) change(false);
        }
    }
    bool hopeless() const { return shared_.count() >= kTrial / 4 && shared_.mean() > 1.5 * alone_.mean(); }
    void change(bool together) {
        together_ = together;
        (together ? shared_ : alone_).clear();
    }

    static constexpr int64_t kTrial = 64, kTerm = 4096;  // steps; after a term doing it alone is timed anew
    bool together_ = false;
    int64_t pause_ = kTrial;
    double began_ = 0;  // seconds
    Average alone_, shared_;
};

}  // namespace amago
