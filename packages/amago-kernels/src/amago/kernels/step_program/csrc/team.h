// Whether to share the rows of a step out among threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace amago {

// A helper makes a step shorter, but it is slow to come where another process wants its core, and while it waits for
// the next step it keeps that core from the environments. So both ways are tried, and the whole loop around the steps
// is timed, not the steps alone. Both give the same bits.
//
// Steps come in blocks. The first blocks are done both ways in turn; later ones in the way that proved quicker, with a
// block of the other way now and then. A block is compared with the one before it, for the loop's own speed changes
// with its episodes, and many such pairs are averaged, for a single one says little.
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
        if (++steps_ <= kIgnored) return;  // threads wake up, caches fill
        // A pause of the whole loop says nothing about either way: it counts as three usual steps.
        const int64_t before = steps_ - kIgnored - 1;
        const double usual = previous_ > 0 ? previous_ : before > 0 ? total_ / before : seconds;
        total_ += std::min(seconds, 3 * usual);
        const double mean = total_ / (steps_ - kIgnored);
        const bool hopeless = changed_ && together_ && steps_ >= kBlock / 4 && mean > 2 * previous_;
        if (steps_ < length_ && !hopeless) return;
        if (changed_ && previous_ > 0) learn(std::log(together_ ? mean / previous_ : previous_ / mean), hopeless);
        previous_ = mean;
        length_ = kBlock + (length_ + 5) % 11;  // not in step with what the loop does at regular intervals
        steps_ = 0;
        total_ = 0;
        choose();
    }

    // Takes in the logarithm of the time together over the time alone.
    void learn(double ratio, bool hopeless) {
        const bool quicker = worth_it(), trial = together_ != quicker;
        gain_ += (std::clamp(ratio, -0.5, 0.5) - gain_) / std::min<int64_t>(++pairs_, kPairs);
        if (worth_it() != quicker) pause_ = kPause;
        else if (pairs_ > kPairs && trial) pause_ = std::min(pause_ * (hopeless ? 8 : 2), kLongest);
    }

    // The way of the next block.
    void choose() {
        const bool before = together_;
        if (pairs_ < kPairs) together_ = !together_;
        else if (together_ != worth_it()) together_ = !together_, blocks_ = 0;  // after a trial, or a change of mind
        else if (++blocks_ >= pause_) together_ = !together_;
        changed_ = together_ != before;
    }

    bool worth_it() const { return gain_ < -0.01; }

    static constexpr int64_t kBlock = 32, kIgnored = 4;     // steps; blocks are a little longer
    static constexpr int64_t kPairs = 8;                    // pairs of blocks
    static constexpr int64_t kPause = 16, kLongest = 1024;  // blocks between two trials
    bool together_ = false, changed_ = false;
    int64_t steps_ = 0, length_ = kBlock, blocks_ = 0, pairs_ = 0, pause_ = kPause;
    double began_ = 0, total_ = 0, previous_ = 0;  // seconds; `previous_` is the mean of the block before
    double gain_ = 0;
};

}  // namespace amago
