use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Builder};

use crate::stop::HelperPriority;

/// The maximum number of threads of [`each`]. Its work is memory-bound, so more threads do not help.
const MAX_WORKERS: usize = 4;

/// Returns the results of `work` for all numbers below `count`, in their order. There are as many threads as processors, at
/// most 4. Each thread takes one number after another, so the threads end at about the same time. A panic of `work` is
/// passed on.
#[must_use]
pub fn each<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return done;
            }
            done.push((number, work(number)));
        }
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let helpers = count.min(processors).min(MAX_WORKERS).saturating_sub(1);
    let priority = HelperPriority::of_this_thread();
    let help = || {
        let _turn = priority.take();
        take()
    };
    let mut done = thread::scope(|scope| {
        // If a thread cannot be started, the others do its part.
        let helper = |_| Builder::new().spawn_scoped(scope, help).ok();
        let helpers: Vec<_> = (0..helpers).filter_map(helper).collect();
        let mut done = take();
        for helper in helpers {
            done.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_their_numbers() {
        for count in [0, 1, 2, 7, 1000] {
            let expected: Vec<usize> = (0..count).map(|number| number * number).collect();
            assert_eq!(each(count, |number| number * number), expected);
        }
    }

    #[test]
    #[should_panic(expected = "part 3")]
    fn a_panic_of_a_part_is_passed_on() {
        _ = each(8, |number| assert_ne!(number, 3, "part {number}"));
    }
}
